"""state.trace(): exact contents on a scripted backend, at any time, and the way to JSON and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramet import MockBackend, ProgramState, ProgramTrace, ProgramTraceFormatError, function, gen, select, user
from ramet.frontend.backends.mock_tokenizer import MockTokenizer


@function
def triage(s: ProgramState, ticket: str, tries: int = 1) -> None:
    s += "Sort this.\n" + ticket + " ->"
    s += select("queue", choices=["billing", "other"])
    s += "\nReply: "
    forks = s.fork(2)
    for idx, fork in enumerate(forks):
        fork += f"({idx}) "
        fork += gen("reply", max_tokens=8, temperature=0.5, stop="!")
    forks.join()


def run_triage(**options: Any) -> ProgramState:
    state = triage.run(ticket="Hi <b>", backend=MockBackend("Thanks! more"), **options)
    state.sync()
    return state


def test_a_trace_tells_every_call() -> None:
    trace = run_triage().trace()
    assert (trace.name, trace.status, trace.error) == ("triage", "done", None)
    assert trace.arguments == {"ticket": "Hi <b>"}
    assert [call.kind for call in trace.calls] == [
        "text",
        "select",
        "text",
        "fork",
        "text",
        "gen",
        "text",
        "gen",
        "join",
    ]
    assert trace.calls[0].text == "Sort this.\nHi <b> ->"
    chosen, reply = trace.calls[1], trace.calls[5]
    assert chosen.value == chosen.text == "other"
    assert chosen.params == {"choices": ["billing", "other"], "choices_method": "token_length_normalized"}
    assert chosen.meta is not None
    assert chosen.chosen_idx == 1
    assert (reply.branch, reply.parent_ids, reply.name) == ((0,), (4,), "reply")
    assert reply.params == {"max_tokens": 8, "temperature": 0.5, "stop": ["!"]}
    assert reply.prompt_text == "Sort this.\nHi <b> ->other\nReply: (0) "
    assert reply.text == reply.value == "Thanks"
    assert reply.meta is not None
    assert (reply.meta.finish_reason, reply.meta.stop_reason) == ("stop", "!")
    assert reply.submitted_s is not None
    assert reply.ended_s is not None
    assert 0.0 <= reply.asked_s <= reply.submitted_s <= reply.ended_s <= trace.duration_s
    assert reply.source.startswith("test_program_trace.py:")
    assert trace.model["backend"] == "mock"


def test_special_tokens_are_known_apart_from_text_that_spells_them() -> None:
    @function
    def chat(s: ProgramState) -> None:
        s += user("<|end|>")
        with s.assistant():
            s += gen("reply")

    trace = chat.run(backend=MockBackend("ok")).trace()
    special = [token.text for token in trace.vocabulary if token.is_special]
    assert "<|end|>" in special
    assert all(len(token.text) == 1 for token in trace.vocabulary if not token.is_special)
    assert trace.messages[0] == {"role": "user", "content": "<|end|>"}


def test_a_running_program_has_a_trace() -> None:
    backend = MockBackend("fine", mode="manual")

    @function
    def two(s: ProgramState) -> None:
        s += "a" + gen("first") + "b" + gen("second")

    state = two.run(backend=backend)
    trace = state.trace()
    assert trace.status == "running"
    assert [call.status for call in trace.model_calls] == ["running", "waiting"]
    backend.requests[0].push("fi")
    assert state.trace().model_calls[0].text == "fi"
    assert ProgramTrace.from_json(state.trace().to_json()).model_calls[1].prompt_token_ids == ()
    backend.answer_all()
    assert [call.status for call in state.trace().model_calls] == ["done", "done"]


def test_a_failed_call_and_what_follows_it() -> None:
    @function
    def two(s: ProgramState) -> None:
        s += "a" + gen("first") + "b" + gen("second")

    trace = two.run(backend=MockBackend([ValueError("no luck")])).trace()
    first, second = trace.model_calls
    assert trace.status == "failed"
    assert (first.status, second.status) == ("failed", "failed")
    assert first.error is not None
    assert first.error.type == "GenerationError"
    assert first.error.causes == ("ValueError: no luck",)
    assert second.error is not None
    assert second.error.causes[-1] == "ValueError: no luck"


def test_a_body_that_raised() -> None:
    @function
    def bad(s: ProgramState, number: float) -> None:
        s += "a" + gen("first")
        raise KeyError("oops")

    trace = bad.run(float("nan"), backend=MockBackend("x"), on_error="return").trace()
    assert trace.status == "raised"
    assert trace.error is not None
    assert (trace.error.type, trace.error.message) == ("KeyError", "'oops'")
    assert (trace.error.source or "").startswith("test_program_trace.py:")
    assert trace.arguments == {"number": "nan"}
    assert trace.calls[1].value == "x"


def test_a_trace_comes_back_from_json_whole() -> None:
    trace = run_triage(logprobs=2).trace()
    text = trace.to_json()
    assert ProgramTrace.from_json(text) == trace
    rows = json.loads(text)["calls"]
    assert rows[5]["after"] == 1
    assert rows[5]["prompt_token_ids"][0] == len(trace.calls[1].prompt_token_ids) + len("other")
    assert len(rows[5]["prompt_token_ids"]) < 20


def test_a_prompt_with_no_text_for_a_token_is_kept_as_ids() -> None:
    class Dumb(MockTokenizer):
        def decode(self, token_ids: Any) -> str:
            raise RuntimeError("cannot")

    backend = MockBackend("x")
    state = triage.run(ticket="t", backend=backend)
    backend.tokenizer = Dumb()
    trace = state.trace()
    assert trace.model_calls[0].prompt_text is None
    assert trace.vocabulary == ()
    assert ProgramTrace.from_json(trace.to_json()) == trace


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[]", "must be an object"),
        ("{}", "format=None"),
        ('{"format":"ramet-program-trace","version":9}', "version=9"),
        ('{"format":"ramet-program-trace","version":1}', "no field 'name'"),
        ('{"format":"ramet-program-trace","version":1,"name":3,"run_id":""}', "name must be str, not 3"),
        (
            '{"format":"ramet-program-trace","version":1,"name":"","run_id":"","calls":[{"call_id":7,"kind":"gen"}]}',
            "0",
        ),
        ('{"format":"ramet-program-trace","version":1,"name":"","run_id":"","calls":[{"after":0}]}', "earlier call"),
    ],
)
def test_what_is_no_trace_is_refused(text: str, message: str) -> None:
    with pytest.raises(ProgramTraceFormatError, match=message):
        ProgramTrace.from_json(text)
