"""Anthropic: what is sent, what becomes of the answers, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ramet.frontend.backend import GenerateCall
from ramet.frontend.backends.anthropic_api import Anthropic
from ramet.frontend.backends.chat_log import chat_segments
from ramet.frontend.backends.errors import BackendCallError, UnsupportedByBackendError
from ramet.frontend.errors import GenerationError, InvalidProgramError, ProgramError
from ramet.frontend.primitives import assistant, gen, select, system, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState
from ramet.sampling_params import SamplingParams

from .stub_server import Exchange, Script, StubServer, deltas

Make = Callable[..., Anthropic]


@pytest.fixture
def make(server: StubServer) -> Iterator[Make]:
    made: list[Anthropic] = []

    def make(**options: Any) -> Anthropic:
        options = {"api_key": "secret", "base_url": server.url, "timeout": 10.0, **options}
        made.append(Anthropic("claude-test", **options))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def begin(exchange: Exchange) -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 3, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "claude-test"}
    exchange.begin_events()
    exchange.event({"type": "message_start", "message": {**message, "usage": usage}}, "message_start")
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    exchange.event(block, "content_block_start")
    exchange.event({"type": "ping"}, "ping")


def add(exchange: Exchange, text: str) -> None:
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    exchange.event(delta, "content_block_delta")


def answer(text: str, stop_reason: str = "end_turn", stop_sequence: str | None = None) -> Script:
    def script(exchange: Exchange) -> None:
        begin(exchange)
        for piece in deltas(text):
            add(exchange, piece)
        exchange.event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        exchange.event({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}}, "message_delta")
        exchange.event({"type": "message_stop"}, "message_stop")
        exchange.end_events()

    return script


@function
def ask(s: ProgramState, question: str, **options: Any) -> None:
    s += system("Be brief.")
    s += user(question)
    s += assistant(gen("answer", **options))


def failure_of(state: ProgramState) -> BackendCallError:
    failure = state.error()
    assert failure is not None
    assert isinstance(failure.__cause__, BackendCallError), failure.__cause__
    return failure.__cause__


def test_a_program_is_sent_as_messages(server: StubServer, make: Make) -> None:
    server.play(answer("A shoot", "stop_sequence", "."))
    state = ask.run(question="A ramet?", backend=make(), stop=["."], max_tokens=9)
    assert state["answer"] == "A shoot"
    (request,) = server.requests
    assert (request.path, request.headers["authorization"]) == ("/v1/messages", "Bearer secret")
    assert request.body == {
        "model": "claude-test",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "A ramet?"}],
        "max_tokens": 9,
        "stop_sequences": ["."],
        "stream": True,
    }
    meta = state.meta("answer")
    assert (meta.num_prompt_tokens, meta.num_cached_tokens, meta.num_generated_tokens) == (28, 20, 7)
    assert (meta.finish_reason, meta.stop_reason) == ("stop", ".")


def test_how_to_sample_can_be_said_to_the_old_version_only(server: StubServer, make: Make) -> None:
    server.play(answer("x"))
    options: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "top_k": 40}
    with pytest.raises(GenerationError, match=r"cannot do temperature=0.5: .*api_version='2023-06-01'"):
        ask.run(question="x", backend=make(), **options)["answer"]
    assert ask.run(question="x", backend=make(api_version="2023-06-01"), **options)["answer"] == "x"
    (request,) = server.requests
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert {name: request.body[name] for name in options} == options


def test_a_later_system_message_stays_in_its_place(server: StubServer, make: Make) -> None:
    server.play(answer("x"))

    @function
    def late(s: ProgramState) -> None:
        s += system("first")
        s += user("x")
        s += system("late")
        s += assistant(gen("answer"))

    assert late.run(backend=make())["answer"] == "x"
    assert server.bodies[0]["system"] == "first"
    assert server.bodies[0]["messages"][1:] == [{"role": "system", "content": "late"}]


def test_the_prompt_can_be_cached_and_more_fields_sent(server: StubServer, make: Make) -> None:
    server.play(answer("x"))
    backend = make(caches_prompts=True, extra_body={"service_tier": "auto"})
    assert ask.run(question="x", backend=backend)["answer"] == "x"
    assert server.bodies[0]["cache_control"] == {"type": "ephemeral"}
    assert server.bodies[0]["service_tier"] == "auto"


def test_text_before_a_gen_is_what_the_answer_begins_with(server: StubServer, make: Make) -> None:
    server.play(answer(" 4"), answer(" 2"))

    @function
    def digits(s: ProgramState) -> None:
        s += user("42?")
        s += assistant("First:" + gen("a") + ", second:" + gen("b"))

    state = digits.run(backend=make())
    assert state.messages()[-1]["content"] == "First: 4, second: 2"
    assert [body["messages"][-1] for body in server.bodies] == [
        {"role": "assistant", "content": "First:"},
        {"role": "assistant", "content": "First: 4, second:"},
    ]


def test_white_space_at_the_end_of_it_is_refused(server: StubServer, make: Make) -> None:
    @function
    def digit(s: ProgramState) -> None:
        s += user("4?")
        s += assistant("It is: " + gen("a"))

    with pytest.raises(GenerationError, match="ends in white space, 'It is: '"):
        digit.run(backend=make())["a"]


def test_branches_share_what_is_before_them(server: StubServer, make: Make) -> None:
    server.script = lambda exchange: answer(exchange.body["messages"][-1]["content"].upper())(exchange)

    @function
    def tips(s: ProgramState) -> None:
        s += user("begin")
        s += assistant(gen("start"))
        branches = s.fork(3)
        for idx, branch in enumerate(branches):
            branch += user(f"tip {idx}")
            branch += assistant(gen("tip"))
        branches.join()

    assert tips.run(backend=make())["tip"] == ["TIP 0", "TIP 1", "TIP 2"]
    assert [body["messages"][:2] for body in server.bodies[1:]] == [
        [{"role": "user", "content": "begin"}, {"role": "assistant", "content": "BEGIN"}]
    ] * 3


def test_a_schema_and_choices_become_the_output_format(server: StubServer, make: Make) -> None:
    server.play(answer('{"a": 1}'), answer('{"choice": "no"}'))

    @function
    def both(s: ProgramState) -> None:
        s += user("x")
        s += assistant(gen("object", json_schema={"type": "object"}))
        s += user("y")
        s += assistant(gen("choice", choices=["yes", "no"], temperature=1.0))

    state = both.run(backend=make())
    assert (state["object"], state["choice"]) == ('{"a": 1}', "no")
    formats = [body["output_config"]["format"] for body in server.bodies]
    assert formats[0] == {"type": "json_schema", "schema": {"type": "object"}}
    assert formats[1]["schema"]["properties"]["choice"]["enum"] == ["yes", "no"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 2}, r"cannot do n=2: use s.fork\(n\)"),
        ({"seed": 1}, "cannot do seed=1"),
        ({"logprobs": 0}, "cannot do logprobs=0"),
        ({"regex": "a"}, "cannot do regex="),
        ({"presence_penalty": 1.0}, "cannot do presence_penalty"),
        ({"logit_bias": {1: 1.0}}, "cannot do logit_bias"),
        ({"top_k": 5}, "cannot do top_k=5"),
        ({"stop": "\n"}, r"cannot stop at '\\n'"),
    ],
)
def test_what_the_api_lacks_is_refused_and_not_dropped(
    server: StubServer, make: Make, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(GenerationError, match=message) as caught:
        ask.run(question="x", backend=make(), **options)["answer"]
    assert isinstance(caught.value.__cause__, UnsupportedByBackendError)
    assert server.requests == []


def test_a_length_is_needed(make: Make) -> None:
    backend = make()
    segments = chat_segments([{"role": "user", "content": "x"}], None, add_generation_prompt=True, backend="test")
    token_ids = tuple(backend.encode(segments, at_start=True))
    with pytest.raises(UnsupportedByBackendError, match="needs max_tokens"):
        backend.generate(GenerateCall(token_ids, SamplingParams(max_tokens=None)))


def test_it_cannot_select_and_says_what_it_can(make: Make) -> None:
    @function
    def pick(s: ProgramState) -> None:
        s += user("x")
        s += assistant(select("answer", ["a", "b"]))

    with pytest.raises(GenerationError, match=r"cannot select.*choices="):
        pick.run(backend=make())["answer"]


def test_a_user_message_is_needed(make: Make) -> None:
    @function
    def alone(s: ProgramState) -> None:
        s += assistant(gen("answer"))

    with pytest.raises(GenerationError, match="needs a user message"):
        alone.run(backend=make())["answer"]


def test_a_missing_key_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidProgramError, match="ANTHROPIC_API_KEY"):
        Anthropic("claude-test")


def error(status: int, message: str, **headers: str) -> Script:
    payload = {"type": "error", "error": {"type": "t", "message": message}}
    return lambda exchange: exchange.json(payload, status, headers)


def test_a_refused_call_is_an_error_with_its_status(server: StubServer, make: Make) -> None:
    server.play(error(400, "prefill is not supported"))
    failure = failure_of(ask.run(question="x", backend=make()))
    assert failure.status == 400
    assert "prefill is not supported" in str(failure)


def test_an_overloaded_server_is_asked_again(server: StubServer, make: Make) -> None:
    server.play(error(529, "overloaded", **{"retry-after-ms": "1"}), answer("at last"))
    assert ask.run(question="x", backend=make())["answer"] == "at last"
    server.play(error(529, "overloaded"))
    assert "is overloaded" in str(failure_of(ask.run(question="x", backend=make(max_retries=0))))


def overload_inside(exchange: Exchange) -> None:
    begin(exchange)
    add(exchange, "half a")
    exchange.event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error")
    exchange.end_events()


def break_off(exchange: Exchange) -> None:
    begin(exchange)
    add(exchange, "half a")
    exchange.break_off()


def end_early(exchange: Exchange) -> None:
    begin(exchange)
    add(exchange, "half a")
    exchange.end_events()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (overload_inside, "Overloaded"),
        (break_off, "the connection to"),
        (end_early, "after 6 characters"),
        (answer("", "refusal"), "stop_reason 'refusal'"),
    ],
)
def test_an_answer_that_is_none_is_an_error(server: StubServer, make: Make, script: Script, message: str) -> None:
    server.play(script)
    assert message in str(failure_of(ask.run(question="x", backend=make())))


@pytest.mark.parametrize("stop_reason", ["max_tokens", "model_context_window_exceeded"])
def test_a_text_that_was_cut_off_says_so(server: StubServer, make: Make, stop_reason: str) -> None:
    server.play(answer("half a", stop_reason))
    assert ask.run(question="x", backend=make()).meta("answer").finish_reason == "length"


def test_cancelling_closes_the_stream(server: StubServer, make: Make) -> None:
    closed: list[bool] = []

    def script(exchange: Exchange) -> None:
        begin(exchange)
        add(exchange, "begun")
        closed.append(exchange.wait_closed_by_client())

    server.script = script
    backend = make()
    state = ask.stream(question="x", backend=backend)
    assert next(state.text_iter("answer", timeout=20)) == "begun"
    state.cancel()
    with pytest.raises(ProgramError, match="cancel"):
        state["answer"]
    backend.close()
    server.close()  # waits for the script
    assert closed == [True]
