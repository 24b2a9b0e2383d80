"""LocalBackend hands constraints to the engine and takes back what it says of them. The engine here is a stand-in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ramet import LLM
from ramet.frontend.backend import TextSegment
from ramet.frontend.backends.local import LocalBackend
from ramet.frontend.backends.mock_tokenizer import MockTokenizer
from ramet.frontend.errors import GenerationError, UnparsedTextError
from ramet.frontend.primitives import gen
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState
from ramet.runtime.chat_template import TextSegment as RuntimeSegment
from ramet.runtime.engine_loop import RequestHandle
from ramet.runtime.errors import InvalidRequestError
from ramet.runtime.outputs import CompletionOutput, FinishReason, OutputChunk, RequestMetrics, RequestOutput
from ramet.runtime.request import Request
from ramet.sampling_params import InvalidSamplingParamsError


class StandInTokenizer:
    """What LocalBackend uses of a tokenizer, over the mock's."""

    def __init__(self, tokenizer: MockTokenizer) -> None:
        self.mock = tokenizer

    def encode_segments(self, segments: list[RuntimeSegment], *, is_text_start: bool) -> list[int]:
        pieces = [TextSegment(segment.text, segment.is_template) for segment in segments]
        return self.mock.encode(pieces, at_start=is_text_start)

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return self.mock.decode(token_ids)


class StandInLLM(LLM):
    """An LLM without an engine: `respond` gives the completion of a request and how many tokens it healed."""

    def __init__(self, respond: Callable[[Request], tuple[CompletionOutput, int]], tokenizer: MockTokenizer) -> None:
        self.respond = respond
        self.requests: list[Request] = []
        self._stand_in_tokenizer = StandInTokenizer(tokenizer)

    @property
    def tokenizer(self) -> StandInTokenizer:  # type: ignore[override]
        return self._stand_in_tokenizer

    def new_request_id(self) -> str:
        return str(len(self.requests))

    def submit_requests(self, requests: list[Request]) -> list[RequestHandle]:
        answers = [self.respond(request) for request in requests]
        self.requests += requests
        handles = [RequestHandle(request, lambda request_id: None, threading.Thread()) for request in requests]
        for handle, (completion, num_healed) in zip(handles, answers, strict=True):
            handle.publish(self._last_chunk(handle.request, completion, num_healed))
        return handles

    def _last_chunk(self, request: Request, completion: CompletionOutput, num_healed: int) -> OutputChunk:
        prompt = request.prompt_token_ids[: len(request.prompt_token_ids) - num_healed]
        output = RequestOutput(
            request_id=request.request_id,
            prompt=None,
            prompt_token_ids=list(prompt),
            prompt_logprobs=None,
            outputs=[completion],
            finished=True,
            metrics=RequestMetrics(arrival_time=time.monotonic()),
            num_cached_tokens=0,
            num_healed_tokens=num_healed,
        )
        return OutputChunk(request.request_id, 0, completion.text, tuple(completion.token_ids), output=output)

    def shutdown(self) -> None:
        pass


@pytest.fixture
def backends() -> Iterator[Callable[[StandInLLM], LocalBackend]]:
    made: list[LocalBackend] = []

    def make(llm: StandInLLM) -> LocalBackend:
        made.append(LocalBackend(llm))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


Backends = Callable[[StandInLLM], LocalBackend]
TOKENIZER = MockTokenizer(merges=[" yes"])
YES = TOKENIZER.merge_ids[" yes"]


def completion(
    text: str, token_ids: tuple[int, ...], *, complete: bool | None = None, **fields: object
) -> CompletionOutput:
    defaults = {"finish_reason": FinishReason.STOP, "num_text_tokens": len(token_ids), "complete": complete}
    return CompletionOutput(0, text, list(token_ids), **{**defaults, **fields})  # type: ignore[arg-type]


@function
def ask(s: ProgramState, regex: str) -> None:
    s += "a: " + gen("x", regex=regex) + "!" + gen("y")


def respond_yes(request: Request) -> tuple[CompletionOutput, int]:
    if request.sampling_params.regex is None:
        return completion("ok", (ord("o"), ord("k"), 0), num_text_tokens=2), 0
    return completion("yes", (YES,), complete=True), 1


def test_the_engine_learns_what_may_be_healed_and_says_what_was(backends: Backends) -> None:
    llm = StandInLLM(respond_yes, TOKENIZER)
    state = ask.run("yes|no", backend=backends(llm))
    assert state.text() == "a: yes!ok"
    # A finished grammar ends a text without a stop token, so the last token is text.
    assert state.token_ids() == [*map(ord, "a:"), YES, *map(ord, "!ok")]
    assert [request.num_healable_tokens for request in llm.requests] == [2, 0]
    assert llm.requests[0].sampling_params.regex == "yes|no"
    assert [state.meta(name).complete for name in ("x", "y")] == [True, None]
    assert state.meta("x").num_prompt_tokens == 2


def test_a_cut_text_comes_back_as_incomplete(backends: Backends) -> None:
    def respond(request: Request) -> tuple[CompletionOutput, int]:
        text = completion('"ab', tuple(map(ord, '"ab')), complete=False, finish_reason=FinishReason.LENGTH)
        return text, 0

    @function
    def program(s: ProgramState) -> None:
        s += "q" + gen("x", dtype=str, max_tokens=3)

    state = program.run(backend=backends(StandInLLM(respond, TOKENIZER)))
    with pytest.raises(UnparsedTextError, match="max_tokens=3 cut its text off"):
        state["x"]
    assert (state.text(), state.meta("x").complete) == ('q"ab', False)


def test_text_that_the_spanning_token_does_not_cover_keeps_the_literal_text(backends: Backends) -> None:
    def respond(request: Request) -> tuple[CompletionOutput, int]:
        if request.sampling_params.regex is None:
            return respond_yes(request)
        cut = completion("y", (YES,), complete=False, stop_reason="es", num_text_tokens=0, leftover_text="y")
        return cut, 1

    state = ask.run("yes|no", backend=backends(StandInLLM(respond, TOKENIZER)))
    assert state.text() == "a: y!ok"
    assert state.token_ids() == list(map(ord, "a: y!ok"))


def test_a_refused_grammar_fails_its_own_call_only_with_the_line_that_wrote_it(backends: Backends) -> None:
    class RefusedGrammarError(InvalidRequestError):
        pass

    def respond(request: Request) -> tuple[CompletionOutput, int]:
        if request.sampling_params.regex == r"a\b":
            raise RefusedGrammarError(r"regex 'a\\b' cannot be enforced: \b at position 1")
        return respond_yes(request)

    states = ask.run_batch([("yes",), (r"a\b",), ("no|yes",)], backend=backends(StandInLLM(respond, TOKENIZER)))
    assert [state.error() is None for state in states] == [True, False, True]
    with pytest.raises(
        GenerationError, match=r"gen 'x' at test_local_constraints.py:\d+ failed: .*cannot be enforced"
    ) as x:
        states[1]["x"]
    assert isinstance(x.value.__cause__, RefusedGrammarError)
    with pytest.raises(GenerationError, match=r"gen 'y' .* was not run"):
        states[1]["y"]
    assert states[2].text() == "a: yes!ok"


def test_options_of_a_gen_that_contradict_those_of_the_run_are_reported_at_its_line(backends: Backends) -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "q" + gen("x", regex="a+", on_incomplete="close")

    llm = StandInLLM(respond_yes, TOKENIZER)
    with pytest.raises(InvalidSamplingParamsError, match="a stop string could cut the text short"):
        program.run(backend=backends(llm), stop=".")
    assert llm.requests == []
