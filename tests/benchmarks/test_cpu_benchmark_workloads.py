"""The workloads ask for what they say, and a session that does less is found out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cpu.engine_job import WrongCountError, run_checked
from benchmarks.cpu.engines.prefixes import common_prefix_len
from benchmarks.cpu.inputs import FULL, QUICK, Inputs, Sizes, make_inputs
from benchmarks.cpu.text import GROUPS, NotEnoughWordsError, Writer, whole_words
from benchmarks.cpu.workloads import WORKLOADS, Shape

PIECES = [".", ",", *(piece for group in GROUPS.values() for piece in group)]
WORDS = {piece: 10 + idx for idx, piece in enumerate(dict.fromkeys(PIECES))}


class EchoSession:
    """Answers every prompt with its last token, and notes what it was asked for."""

    def __init__(self, *, primes_prefix: bool = False, num_missing: int = 0) -> None:
        self.primes_prefix = primes_prefix
        self.num_missing = num_missing
        self.shapes: list[Shape] = []
        self.calls: list[tuple[list[list[int]], int]] = []

    def begin(self, shape: Shape) -> None:
        self.shapes.append(shape)

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        self.calls.append((prompts, num_tokens))
        replies = [[prompt[-1]] * num_tokens for prompt in prompts]
        replies[-1] = replies[-1][: num_tokens - self.num_missing]
        return replies

    def choose(self, prefix: list[int], questions: list[list[int]], choices: list[list[int]]) -> list[int]:
        self.calls.append(([prefix + question + choice for question in questions for choice in choices], 0))
        return [idx % len(choices) for idx in range(len(questions))]

    def close(self) -> None:
        pass


def inputs_of(sizes: Sizes) -> Inputs:
    return make_inputs(WORDS, sizes, bos_token_id=None)


def run(name: str, session: EchoSession, sizes: Sizes = FULL) -> EchoSession:
    run_checked(WORKLOADS[name], session, inputs_of(sizes))
    return session


def lengths(call: tuple[list[list[int]], int]) -> tuple[int, set[int], int]:
    """Prompts, their lengths, tokens to generate."""
    prompts, num_tokens = call
    return len(prompts), {len(prompt) for prompt in prompts}, num_tokens


def test_a_prompt_of_its_own_is_computed_twice_from_nothing() -> None:
    session = run("W1", EchoSession())
    assert [lengths(call) for call in session.calls] == [(1, {512}, 1), (1, {512}, 128)]
    assert session.shapes == [Shape(1, 640, 640, is_shared=False)] * 2


def test_the_batch_shares_nothing() -> None:
    (call,) = run("W2", EchoSession()).calls
    assert lengths(call) == (32, {128}, 64)
    assert common_prefix_len(call[0]) < 8


def test_questions_stand_behind_one_prefix() -> None:
    (call,) = run("W3", EchoSession()).calls
    assert lengths(call) == (64, {1056}, 8)
    assert len({tuple(prompt[:1024]) for prompt in call[0]}) == 1
    assert len({tuple(prompt) for prompt in call[0]}) == 64


@pytest.mark.parametrize("name", ["W3", "W3-together", "W5"])
def test_the_prefix_is_sent_ahead_to_engines_that_need_it(name: str) -> None:
    calls = run(name, EchoSession(primes_prefix=True)).calls
    is_primed = lengths(calls[0])[0] == 1 and calls[0][1] == 1
    assert is_primed == (name != "W3-together")
    if is_primed:
        prefix = calls[0][0][0]
        assert all(prompt[: len(prefix)] == prefix for prompt in calls[1][0])


def test_choices_differ_from_the_first_token_on() -> None:
    ((prompts, _),) = run("W3-select", EchoSession()).calls
    assert len(prompts) == 64 * 4
    assert {len(prompt) for prompt in prompts} == {1059}
    assert len({prompt[1056] for prompt in prompts[:4]}) == 4


def test_each_turn_of_a_chat_continues_the_last_one() -> None:
    calls = run("W4", EchoSession()).calls
    assert [lengths(call) for call in calls] == [(8, {40 + 104 * turn}, 64) for turn in range(6)]
    for (prompts, num_tokens), (later_prompts, _) in pairwise(calls):
        for prompt, later in zip(prompts, later_prompts, strict=True):
            assert later[: len(prompt) + num_tokens] == prompt + [prompt[-1]] * num_tokens


def test_the_join_holds_every_branch_and_its_reply() -> None:
    forks, join = run("W5", EchoSession()).calls
    assert (lengths(forks), lengths(join)) == ((8, {800}, 64), (1, {768 + 8 * 96}, 64))
    for idx, prompt in enumerate(forks[0]):
        start = 768 + 96 * idx
        assert join[0][0][start : start + 96] == prompt[768:] + [prompt[-1]] * 64


@pytest.mark.parametrize("sizes", [FULL, QUICK], ids=["full", "quick"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_announced_is_enough(name: str, sizes: Sizes) -> None:
    session = run(name, EchoSession(), sizes)
    for shape in session.shapes:
        for prompts, num_tokens in session.calls:
            assert len(prompts) <= shape.num_sequences * (1 if num_tokens else sizes.choices[0])
            assert max(map(len, prompts)) + num_tokens <= shape.max_len


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "W3-select"])
def test_one_token_too_few_is_refused(name: str) -> None:
    with pytest.raises(WrongCountError, match=r"instead of \d+ tokens"):
        run(name, EchoSession(num_missing=1), QUICK)


def test_inputs_survive_the_way_to_another_process(tmp_path) -> None:
    inputs = inputs_of(QUICK)
    inputs.save(tmp_path / "inputs.json")
    assert Inputs.load(tmp_path / "inputs.json") == inputs


def test_a_begin_token_counts_as_one_of_the_prompt() -> None:
    inputs = make_inputs(WORDS, QUICK, bos_token_id=1)
    assert len(inputs.single) == QUICK.single[0]
    openings = [inputs.single, *inputs.batch, inputs.prefix, *(chat[0] for chat in inputs.chats), inputs.fork_prefix]
    assert all(opening[0] == 1 and 1 not in opening[1:] for opening in openings)
    assert 1 not in [token_id for question in inputs.questions for token_id in question]


def test_the_text_is_the_same_every_time_and_other_for_another_seed() -> None:
    assert Writer(WORDS, 3).take(200) == Writer(WORDS, 3).take(200)
    assert Writer(WORDS, 3).take(200) != Writer(WORDS, 4).take(200)


def test_only_words_of_one_token_are_used() -> None:
    def encode(text: str) -> list[int]:
        return [token_id for word in text.split() for token_id in ([1, 2] if word.startswith("s") else [hash(word)])]

    table = whole_words(encode)
    assert " captain" in table
    assert not any(piece.startswith(" s") for piece in table)


def test_a_tokenizer_that_splits_all_words_is_refused() -> None:
    with pytest.raises(NotEnoughWordsError, match="fewer than three"):
        whole_words(lambda text: list(text.encode()))


@given(st.lists(st.lists(st.integers(0, 1), max_size=12), min_size=1, max_size=4))
def test_common_prefix(token_lists: Sequence[list[int]]) -> None:
    expected = 0
    while all(len(each) > expected for each in token_lists) and len({each[expected] for each in token_lists}) == 1:
        expected += 1
    assert common_prefix_len(token_lists) == expected
