"""select: which tokens are scored, who wins, and how the state goes on."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.frontend.backend import ScoreCall, TextSegment
from ramet.frontend.backends.mock import CHAT_TOKENS, MockBackend
from ramet.frontend.backends.mock_tokenizer import MockTokenizer
from ramet.frontend.choices import (
    ChoiceLogprobs,
    choice_probabilities,
    greedy_token_selection,
    resolve_choices_method,
    sum_logprobs,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from ramet.frontend.errors import GenerationError, InvalidProgramError
from ramet.frontend.primitives import assistant, gen, select, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState
from ramet.frontend.token_log import TokenLog


def score_call(backend: MockBackend, idx: int) -> ScoreCall:
    call = backend.requests[idx].call
    assert isinstance(call, ScoreCall)
    return call


def ids(text: str) -> tuple[int, ...]:
    return tuple(ord(character) for character in text)


@function
def yes_or_no(s: ProgramState, prompt: str, choices: list[str]) -> None:
    s += prompt + select("answer", choices) + "." + gen("why")


def test_the_best_choice_continues_the_state_by_its_own_tokens() -> None:
    backend = MockBackend(scores=lambda prompt, choice: {"yes": -2.0, "no": -1.0}[choice])
    state = yes_or_no.run("ok?", ["yes", "no"], backend=backend)
    assert state["answer"] == "no"
    assert score_call(backend, 0) == ScoreCall(ids("ok?"), (ids("yes"), ids("no")))
    assert backend.requests[1].call.prompt_token_ids == ids("ok?no.")
    assert state.text() == "ok?no.ok"
    meta = state.meta("answer")
    assert meta.finish_reason == "select"
    assert [(item.choice.text, item.score) for item in meta.choices] == [("yes", -2.0), ("no", -1.0)]
    assert state.calls()[1].prompt_token_ids == ids("ok?")


def test_a_choice_that_merges_with_the_prompt_is_scored_as_the_model_would_write_it() -> None:
    """ "a: " + "no" tokenises as "a", ":", " no". All choices are then scored from the place of that merge."""
    tokenizer = MockTokenizer(merges=[" no"])
    no = tokenizer.merge_ids[" no"]
    backend = MockBackend(tokenizer=tokenizer, scores=lambda prompt, choice: {" yes": -3.0, " no": -1.0}[choice])
    state = yes_or_no.run("a: ", ["yes", "no"], backend=backend)
    assert state["answer"] == "no"
    assert score_call(backend, 0) == ScoreCall(ids("a:"), (ids(" yes"), (no,)))
    assert backend.requests[1].call.prompt_token_ids == (*ids("a:"), no, ord("."))


def test_a_merge_of_the_whole_prompt_keeps_the_prompt_whole() -> None:
    tokenizer = MockTokenizer(merges=["ab"])
    backend = MockBackend(tokenizer=tokenizer)
    yes_or_no.run("a", ["b", "c"], backend=backend).sync()
    assert score_call(backend, 0) == ScoreCall(ids("a"), (ids("b"), ids("c")))
    begin = MockTokenizer(merges=["ab"], special_tokens=CHAT_TOKENS, begin_token="<|begin|>")
    with_begin = MockBackend(tokenizer=begin)
    yes_or_no.run("a", ["b", "c"], backend=with_begin).sync()
    prompt = (begin.special_ids["<|begin|>"],)
    assert score_call(with_begin, 0) == ScoreCall(prompt, ((begin.merge_ids["ab"],), ids("ac")))


def test_a_choice_that_begins_another_and_a_single_choice_work() -> None:
    backend = MockBackend(scores=lambda prompt, choice: -float(len(choice)))
    assert yes_or_no.run("q", ["ab", "a"], backend=backend)["answer"] == "a"
    assert yes_or_no.run("q", ["only"], backend=backend)["answer"] == "only"


def test_select_after_gen_continues_its_tokens() -> None:
    @function
    def thinks(s: ProgramState) -> None:
        s += "q" + gen("thought")
        s += select("answer", ["ab", "c"])

    backend = MockBackend("xa", tokenizer=MockTokenizer(merges=["aab"]))
    thinks.run(backend=backend).sync()
    assert score_call(backend, 1) == ScoreCall(ids("qxa"), (ids("ab"), ids("c")))


def test_unconditional_scores_are_asked_for_without_the_prompt() -> None:
    @function
    def normalised(s: ProgramState) -> None:
        s += "q" + select("answer", ["aa", "bb"], choices_method=unconditional_likelihood_normalized)

    def scores(prompt: str, choice: str) -> float:
        return {("q", "aa"): -1.0, ("q", "bb"): -2.0, ("", "aa"): -1.0, ("", "bb"): -4.0}[prompt, choice]

    backend = MockBackend(scores=scores)
    state = normalised.run(backend=backend)
    assert state["answer"] == "bb"
    assert score_call(backend, 1) == ScoreCall((), (ids("aa"), ids("bb")))
    best = state.meta("answer").choices[1]
    assert best.choice.unconditional_logprobs == (0.0, -4.0)
    assert best.score == pytest.approx((-2.0 - 0.0 + -2.0 + 4.0) / 2)


def test_a_failed_score_is_raised_where_it_is_read() -> None:
    def fails(prompt: str, choice: str) -> float:
        raise RuntimeError("no scores")

    state = yes_or_no.run("q", ["a", "b"], backend=MockBackend(scores=fails))
    with pytest.raises(GenerationError, match=r"select 'answer' at .* failed: no scores"):
        state["answer"]
    with pytest.raises(GenerationError, match=r"gen 'why' .* was not run"):
        state["why"]


def test_select_can_be_streamed_and_cancelled() -> None:
    backend = MockBackend(mode="manual")
    state = yes_or_no.run("q", ["a", "b"], backend=backend)
    assert state.text_so_far() == "q"
    backend.answer_next()
    assert list(state.text_iter("answer")) == ["a"]
    state.cancel()
    assert state["answer"] == "a"


def choice(text: str, *logprobs: float, end: float = 0.0) -> ChoiceLogprobs:
    """Each character is a token."""
    assert len(text) == len(logprobs)
    return ChoiceLogprobs(text, ids(text), logprobs, end)


def test_means_and_sums() -> None:
    long, short = choice("abc", -3.0, -0.5, -0.5), choice("d", -2.0)
    assert token_length_normalized.scores([long, short]) == pytest.approx([-4 / 3, -2.0])
    assert sum_logprobs.scores([long, short]) == pytest.approx([-4.0, -2.0])
    assert (long.sum_logprob, long.mean_logprob) == pytest.approx((-4.0, -4 / 3))
    assert choice_probabilities([long, short]) == pytest.approx([1 / (1 + math.e**2), 1 / (1 + math.e**-2)])
    assert choice_probabilities([choice("a", -math.inf)] * 2) == [0.0, 0.0]


def test_the_end_counts_in_a_sum_where_one_choice_begins_another() -> None:
    """ "a" has 0.5, "ab" goes on with 0.8 of it, so the text stays "a" with 0.5 * 0.2."""
    par, paris = choice("a", math.log(0.5), end=math.log(0.2)), choice("ab", math.log(0.5), math.log(0.8))
    assert [math.exp(score) for score in sum_logprobs.scores([par, paris])] == pytest.approx([0.1, 0.4])
    assert token_length_normalized.scores([par, paris])[0] == math.log(0.5)
    assert choice_probabilities([par, paris]) == pytest.approx([0.2, 0.8])


def test_greedy_rounds() -> None:
    scores = greedy_token_selection.scores
    assert scores([choice("abc", -3.0, -0.5, -0.5), choice("d", -2.0)]) == [0.0, 1.0]
    assert scores([choice("ab", -1.0, -9.0), choice("ac", -1.0, -8.0), choice("d", -2.0)]) == [1.0, 2.0, 0.0]
    assert scores([choice("ab", -1.0, -9.0), choice("cd", -1.0, -1.0)]) == [1.0, 0.0]  # a tie: the first one
    assert scores([choice("a", -1.0), choice("a", -1.0)]) == [2.0, 2.0]
    assert scores([choice("a", -5.0)]) == [0.0]


@pytest.mark.parametrize(("end", "best"), [(-0.1, 0), (-2.5, 1), (-2.0, 0)])
def test_in_a_greedy_round_the_end_is_one_more_way_to_go_on(end: float, best: int) -> None:
    scores = greedy_token_selection.scores([choice("a", -1.0, end=end), choice("ab", -1.0, -2.0), choice("c", -1.5)])
    assert scores.index(max(scores)) == best
    assert scores[2] == 0.0


@given(st.integers(0, 1 << 32))
def test_greedy_selection_is_greedy_decoding_along_the_trie(seed: int) -> None:
    """A random model of three tokens and the end, and all texts of at most three tokens among the choices."""
    rng = random.Random(seed)
    texts = ["".join(text) for length in (1, 2, 3) for text in itertools.product("abc", repeat=length)]
    texts = rng.sample(texts, rng.randrange(1, 12))
    model = {text: [rng.random() for _ in "abcd"] for text in ["", *texts, *(text[:2] for text in texts), *"abc"]}

    def probability(text: str) -> float:
        return model[text[:-1]]["abc".index(text[-1])] / sum(model[text[:-1]])

    prefixes = {text[:end] for text in texts for end in range(1, len(text) + 1)}
    text = ""
    while True:
        options = [text + token for token in "abc" if text + token in prefixes]
        stop = 1 - sum(map(probability, options))
        if text in texts and (not options or stop > max(map(probability, options))):
            break
        text = max(options, key=probability)
    choices = []
    for item in texts:
        logprobs = [math.log(probability(item[:end])) for end in range(1, len(item) + 1)]
        longer = sum(probability(item + token) for token in "abc" if item + token in prefixes)
        choices.append(choice(item, *logprobs, end=math.log1p(-longer)))
    scores = greedy_token_selection.scores(choices)
    assert texts[scores.index(max(scores))] == text


@pytest.mark.parametrize("merges", [(), (" yes",), (" yes", " no"), ("  ", " no")])
def test_it_makes_no_difference_where_the_space_is_written(merges: tuple[str, ...]) -> None:
    def scored(prompt: str, choices: list[str]) -> ScoreCall:
        backend = MockBackend(tokenizer=MockTokenizer(merges=merges))
        yes_or_no.run(prompt, choices, backend=backend).sync()
        return score_call(backend, 0)

    assert scored("a: ", ["yes", "no"]) == scored("a:", [" yes", " no"])
    assert scored("a:  ", ["yes", "no"]) == scored("a: ", [" yes", " no"]) == scored("a:", ["  yes", "  no"])


def test_what_is_not_literal_text_is_never_taken_apart() -> None:
    @function
    def after_a_role(s: ProgramState) -> None:
        s += user("q ") + assistant(select("answer", ["\nyes", "\nno"]))

    backend = MockBackend(tokenizer=MockTokenizer(merges=["\n\nno", " <"], special_tokens=CHAT_TOKENS))
    after_a_role.run(backend=backend).sync()
    call = score_call(backend, 0)
    assert backend.decode(call.prompt_token_ids).endswith("<|start|>assistant\n")
    assert call.continuations == (ids("\nyes"), ids("\nno"))


def test_methods_are_found_by_name() -> None:
    assert resolve_choices_method("sum") is sum_logprobs
    assert resolve_choices_method(None) is token_length_normalized
    with pytest.raises(InvalidProgramError, match="unknown choices method 'best'; known: greedy_token_selection, "):
        select("x", ["a"], method="best")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "at least one"),
        (None, "must be a list of strings"),
        ("yes", "must be a list of strings"),
        (["a", 3], "non-empty string, 3 is not"),
        (["a", ""], "non-empty string, '' is not"),
        (["a", "a"], "must differ"),
    ],
)
def test_choices_are_checked(choices: list[str], message: str) -> None:
    with pytest.raises(InvalidProgramError, match=message):
        select("x", choices)


def test_temperature_and_double_method_are_refused() -> None:
    with pytest.raises(InvalidProgramError, match=r"temperature=0.5"):
        select("x", ["a"], temperature=0.5)
    with pytest.raises(InvalidProgramError, match="same argument"):
        select("x", ["a"], choices_method="sum", method="sum")


@given(
    st.text("ab c\n", max_size=900),
    st.lists(st.text("abc ", min_size=1, max_size=4), min_size=2, max_size=4, unique=True),
)
def test_the_beginning_of_a_long_text_is_tokenised_once_with_the_same_ids(text: str, choices: list[str]) -> None:
    """Merges that no tokenizer with words would have: then all of the text is tokenised with each choice."""
    for merges in ([" a", "ab", "b c", " ab c"], [" a", " b", "ab", "abc"]):
        tokenizer = MockTokenizer(merges=merges)
        tokens = TokenLog(MockBackend(tokenizer=tokenizer))
        tokens.add_text(text)
        ids = tokens.encode_jointly(choices)
        assert ids.head + ids.joint[0] == tokenizer.encode([TextSegment(text + choices[0])], at_start=False)
        for joint, choice in zip(ids.joint, choices, strict=True):
            assert tokenizer.decode(ids.head + joint) == text + choice
        assert tokenizer.decode(ids.head + ids.before) == text.rstrip(" ")


def test_a_long_text_is_not_tokenised_for_every_choice() -> None:
    class CountingTokenizer(MockTokenizer):
        num_chars = 0

        def encode(self, segments: Sequence[TextSegment], *, at_start: bool) -> list[int]:
            self.num_chars += sum(len(segment.text) for segment in segments)
            return super().encode(segments, at_start=at_start)

    tokenizer = CountingTokenizer(merges=[" no"])
    backend = MockBackend(tokenizer=tokenizer)
    text = "word " * 2000
    yes_or_no.run(text, [f"no {idx}" for idx in range(100)], backend=backend).sync()
    assert tokenizer.num_chars < 5 * len(text)
    assert score_call(backend, 0).prompt_token_ids == ids(text.rstrip())
