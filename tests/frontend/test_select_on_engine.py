"""select on the bundled model: the scores are those that each choice gets alone, and they cost next to nothing."""

from __future__ import annotations

import math

import pytest

from ramet import LLM, SamplingParams
from ramet.frontend.backends.local import LocalBackend
from ramet.frontend.calls import CallMeta, CallRecord
from ramet.frontend.choices import ChoiceLogprobs, resolve_choices_method
from ramet.frontend.primitives import assistant, gen, select, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState

pytestmark = pytest.mark.model

METHODS = ["token_length_normalized", "sum", "greedy_token_selection", "unconditional_likelihood_normalized"]
TOOLS = ["search", "search_web", "search_files", "calculator", "calendar", "send_email", "send", "finish"]
CASES = {
    "merging space": ("The capital of France is ", ["Paris", "Antidisestablishmentarianism", "Lyon"]),
    "leading space": ("The capital of France is", [" Paris", " Lyon", " a city"]),
    "shared beginnings and prefixes": ("Use the tool: ", TOOLS),
    "merging letters": ("See http", ["s://", "://", "-equiv", "s"]),
    "several healing depths": ("x = ", ["-1", "10", "y"]),
    "unicode": ("Genießen Sie Ihr Caf", ["é", "é au lait", "e", "ééé", "☕", "日本語", "👩‍🔬"]),
    "characters of several tokens": ("The flower is 🌸 and the sushi is ", ["🍣", "🍣🍣", "🌸", "𝔘𝔫𝔦"]),
    "one choice": ("Hello", [" there, old friend"]),
    "newlines": ("def f(x):\n", ["    return x", "\treturn x", "\n\n"]),
}


@function
def picks(s: ProgramState, prompt: str, choices: list[str], method: str) -> None:
    s += prompt + select("x", choices, method=method)


def call_of(state: ProgramState, name: str = "x") -> CallRecord:
    state.sync()
    return next(call for call in state.calls() if call.name == name)


def scored(backend: LocalBackend, prompt: str, choices: list[str], method: str = "sum") -> tuple[CallRecord, CallMeta]:
    state = picks.run(prompt, choices, method, backend=backend)
    return call_of(state), state.meta("x")


class Alone:
    """Scores one continuation from scratch: as a prompt, with nothing in the cache."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        # Only the C++ step gives the same bits whatever is batched.
        self.exactness = {"cpu": 0.0, "torch": 1e-4}.get(llm.kernels_name, 0.05)

    def logprobs(self, prompt: tuple[int, ...], token_ids: tuple[int, ...]) -> tuple[float, ...]:
        self._llm.reset_prefix_cache()
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        (output,) = self._llm.generate({"prompt_token_ids": [*prompt, *token_ids]}, params)
        assert output.prompt_logprobs is not None
        entries = zip(output.prompt_logprobs[len(prompt) :], token_ids, strict=True)
        return tuple(0.0 if entry is None else entry[token].logprob for entry, token in entries)

    def choices(self, call: CallRecord, meta: CallMeta, *, is_unconditional: bool) -> list[ChoiceLogprobs]:
        found = [score.choice for score in meta.choices]
        prompt = call.prompt_token_ids
        alone = {each.token_ids: self.logprobs(prompt, each.token_ids) for each in found}
        choices = []
        for each in found:
            length = len(each.token_ids)
            longer = {
                other[length]: values[length]
                for other, values in alone.items()
                if len(other) > length and other[:length] == each.token_ids
            }
            choices.append(
                ChoiceLogprobs(
                    each.text,
                    each.token_ids,
                    alone[each.token_ids],
                    math.log(1 - sum(map(math.exp, longer.values()))),
                    self.logprobs((), each.token_ids) if is_unconditional else None,
                )
            )
        return choices


@pytest.mark.parametrize("name", list(CASES))
def test_choices_get_what_each_gets_alone(backend: LocalBackend, llm: LLM, name: str) -> None:
    prompt, choices = CASES[name]
    alone = Alone(llm)
    runs = {method: scored(backend, prompt, choices, method) for method in METHODS}
    call, meta = runs["unconditional_likelihood_normalized"]
    expected = alone.choices(call, meta, is_unconditional=True)
    text = backend.decode(call.prompt_token_ids)
    for method, (_, found) in runs.items():
        for score, wanted in zip(found.choices, expected, strict=True):
            choice = score.choice
            assert choice.token_ids == wanted.token_ids
            assert choice.logprobs == pytest.approx(wanted.logprobs, rel=0, abs=alone.exactness)
            assert choice.end_logprob == pytest.approx(wanted.end_logprob, abs=1e-9 + 10 * alone.exactness)
            assert backend.decode((*call.prompt_token_ids, *choice.token_ids)) == prompt + choice.text
            if choice.unconditional_logprobs is not None:
                wanted_free = wanted.unconditional_logprobs
                assert choice.unconditional_logprobs == pytest.approx(wanted_free, rel=0, abs=alone.exactness)
        scores = resolve_choices_method(method).scores(expected)
        assert [score.score for score in found.choices] == pytest.approx(scores, rel=1e-9, abs=10 * alone.exactness)
        assert sum(score.probability for score in found.choices) == pytest.approx(1.0)
    total = sum(math.exp(score.score) for score in runs["sum"][1].choices)
    assert total <= 1.0 + 1e-9
    assert prompt.startswith(text)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("prompt", "choices"),
    [("Q: Is water wet?\nAnswer:", ["yes", "no"]), ("x =", ["10", "7", "25"]), ("x =", ["-1", "10", "y"])],
)
def test_it_makes_no_difference_where_the_space_is_written(
    backend: LocalBackend, llm: LLM, prompt: str, choices: list[str], method: str
) -> None:
    before = scored(backend, prompt + " ", choices, method)
    llm.reset_prefix_cache()
    behind = scored(backend, prompt, [f" {choice}" for choice in choices], method)
    assert before[0].prompt_token_ids == behind[0].prompt_token_ids
    for left, right in zip(before[1].choices, behind[1].choices, strict=True):
        assert left.choice.token_ids == right.choice.token_ids
        assert (left.score, left.probability) == (right.score, right.probability)


def test_labels_cost_no_step_beyond_the_prompt_and_a_trie_costs_one(backend: LocalBackend, llm: LLM) -> None:
    labels = [f" {letter}" for letter in "ABCDEFGH"]
    for choices, num_steps in ((labels, 1), ([*TOOLS, "seal"], 2)):
        llm.reset_prefix_cache()
        before = llm.metrics()
        call, _ = scored(backend, "The answer to question 7 of the test is", choices)
        after = llm.metrics()
        num_prompt_tokens = len(call.prompt_token_ids)
        assert after.num_steps - before.num_steps == num_steps
        assert after.num_requests - before.num_requests == 1
        assert after.num_generated_tokens == before.num_generated_tokens
        num_computed = after.num_computed_tokens - before.num_computed_tokens
        assert (num_computed == num_prompt_tokens) == (choices is labels)


def test_a_question_about_the_same_text_finds_it_in_the_cache(backend: LocalBackend, llm: LLM) -> None:
    prompt = "The weather on the island is"
    scored(backend, prompt, [" good and", " bad and", " good or"])
    before = llm.metrics()
    call, meta = scored(backend, prompt, [" fine", " foul"])
    assert meta.num_cached_tokens == len(call.prompt_token_ids) - 1
    assert llm.metrics().num_computed_tokens - before.num_computed_tokens == 1


def test_unconditional_scores_are_one_more_request(backend: LocalBackend, llm: LLM) -> None:
    before = llm.metrics()
    scored(backend, "Use the tool: ", TOOLS, "unconditional_likelihood_normalized")
    assert llm.metrics().num_requests - before.num_requests == 2


def test_a_thousand_choices(backend: LocalBackend, llm: LLM) -> None:
    choices = [f"the {word} of {idx}" for idx, word in enumerate(["house", "tree", "cat", "sea", "old man"] * 200)]
    call, meta = scored(backend, "In the picture we see ", choices)
    alone = Alone(llm)
    for score in meta.choices[::111]:
        expected = alone.logprobs(call.prompt_token_ids, score.choice.token_ids)
        assert score.choice.logprobs == pytest.approx(expected, rel=0, abs=alone.exactness)
    assert sum(score.probability for score in meta.choices) == pytest.approx(1.0)


def test_the_text_before_a_fork_is_computed_once_for_the_selects_of_its_branches(backend: LocalBackend) -> None:
    """Less than a block of it; and what the choices begin with in common is no reason to compute it twice."""

    @function
    def in_branches(s: ProgramState) -> None:
        s += "The cat"
        branches = s.fork(3)
        branches += select("x", [" sat on the mat", " sat on the sofa"])
        branches.join()

    metas = in_branches.run(backend=backend).metas("x")
    assert sorted(meta.num_computed_tokens for meta in metas) == [1, 1, metas[0].num_prompt_tokens]


def test_the_state_goes_on_as_if_the_choice_had_been_generated(backend: LocalBackend) -> None:
    @function
    def story(s: ProgramState) -> None:
        s += user("Pick a colour.") + assistant("I pick " + select("x", ["red", "reddish brown", "blue"]) + gen("y"))

    @function
    def in_branches(s: ProgramState) -> None:
        s += "My favourite colour is "
        branches = s.fork(2)
        branches += [select("x", ["red", "blue"]) + gen("y", max_tokens=2), select("z", ["blue", "green"])]
        branches.join()

    state = story.run(backend=backend, max_tokens=2, temperature=0.0)
    choice, then = call_of(state, "x"), call_of(state, "y")
    winner = next(score.choice for score in state.meta("x").choices if score.choice.text == state["x"])
    assert then.prompt_token_ids == (*choice.prompt_token_ids, *winner.token_ids)
    assert state.meta("y").num_cached_tokens >= len(choice.prompt_token_ids)
    forked = in_branches.run(backend=backend)
    assert forked.error() is None
    assert call_of(forked, "x").prompt_token_ids == call_of(forked, "z").prompt_token_ids
