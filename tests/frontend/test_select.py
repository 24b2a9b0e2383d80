"""select: which tokens are scored, who wins, and how the state goes on."""

from __future__ import annotations

import pytest

from ramet.frontend.backend import ScoreCall
from ramet.frontend.backends.mock import CHAT_TOKENS, MockBackend
from ramet.frontend.backends.mock_tokenizer import MockTokenizer
from ramet.frontend.choices import (
    ChoiceLogprobs,
    greedy_token_selection,
    resolve_choices_method,
    sum_logprobs,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from ramet.frontend.errors import GenerationError, InvalidProgramError
from ramet.frontend.primitives import gen, select
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState


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


def logprobs(*values: float) -> ChoiceLogprobs:
    return ChoiceLogprobs("x", tuple(range(len(values))), values)


def test_methods_of_choice() -> None:
    long, short = logprobs(-3.0, -0.5, -0.5), logprobs(-2.0)
    assert token_length_normalized.scores([long, short]) == pytest.approx([-4 / 3, -2.0])
    assert sum_logprobs.scores([long, short]) == pytest.approx([-4.0, -2.0])
    assert greedy_token_selection.scores([long, short]) == [0.0, 1.0]
    tie_then_mean = [logprobs(-1.0), logprobs(-1.0, -0.5), logprobs(-1.0, -2.0)]
    assert greedy_token_selection.scores(tie_then_mean) == [1.0, 2.0, 1.0]
    assert greedy_token_selection.scores([logprobs(-1.0), logprobs(-1.0)]) == [1.0, 1.0]


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
