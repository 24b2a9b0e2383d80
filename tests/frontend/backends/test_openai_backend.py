"""OpenAI: what is sent, what becomes of the answers, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from ramet.frontend.backends.api_sample import SampleDraft
from ramet.frontend.backends.errors import BackendCallError, CallCancelledError, UnsupportedByBackendError
from ramet.frontend.backends.openai_api import OpenAI
from ramet.frontend.errors import GenerationError, InvalidProgramError, ProgramError
from ramet.frontend.primitives import assistant, gen, select, system, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState

from .stub_server import Exchange, Script, StubServer, deltas

Make = Callable[..., OpenAI]


@pytest.fixture
def make(server: StubServer) -> Iterator[Make]:
    made: list[OpenAI] = []

    def make(model_name: str = "gpt-test", **options: Any) -> OpenAI:
        options = {"api_key": "secret", "base_url": f"{server.url}/v1", "timeout": 10.0, **options}
        made.append(OpenAI(model_name, **options))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def chunk(delta: dict[str, Any], finish_reason: str | None = None, index: int = 0, **extra: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish_reason, **extra}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "gpt-test", "choices": [choice]}


def usage(prompt_tokens: int = 11, completion_tokens: int = 3, cached_tokens: int = 8) -> dict[str, Any]:
    counts = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [], "usage": counts}


def chat_answer(text: str, finish_reason: str = "stop", **extra: Any) -> Script:
    pieces = [chunk({"content": piece}) for piece in deltas(text)]
    return lambda exchange: exchange.events([*pieces, chunk({}, finish_reason, **extra), usage()])


def text_answer(text: str, finish_reason: str = "stop") -> Script:
    def choice(piece: str, reason: str | None) -> dict[str, Any]:
        choices = [{"index": 0, "text": piece, "finish_reason": reason, "logprobs": None}]
        return {"id": "c", "object": "text_completion", "created": 0, "model": "m", "choices": choices}

    pieces = [choice(piece, None) for piece in deltas(text)]
    return lambda exchange: exchange.events([*pieces, choice("", finish_reason), usage()])


def error(status: int, message: str, **headers: str) -> Script:
    return lambda exchange: exchange.json({"error": {"message": message, "type": "t"}}, status, headers)


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


# -- what is sent, and what comes back --------------------------------------------------------------------------------


def test_a_chat_program_is_sent_as_messages(server: StubServer, make: Make) -> None:
    server.play(chat_answer("It is a shoot."))
    state = ask.run(question="A ramet? <|end|>\n", backend=make(), max_tokens=40, temperature=0.5, stop=["\n"])
    assert state["answer"] == "It is a shoot."
    (request,) = server.requests
    assert (request.path, request.headers["authorization"]) == ("/v1/chat/completions", "Bearer secret")
    assert request.body == {
        "model": "gpt-test",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "A ramet? <|end|>\n"},
        ],
        "temperature": 0.5,
        "max_tokens": 40,
        "stop": ["\n"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    meta = state.meta("answer")
    assert (meta.num_prompt_tokens, meta.num_cached_tokens, meta.num_generated_tokens) == (11, 8, 3)
    assert (meta.finish_reason, meta.stop_reason) == ("stop", None)
    assert meta.first_token_s is not None
    assert state.messages()[-1] == {"role": "assistant", "content": "It is a shoot."}


def test_turns_follow_each_other_with_what_was_answered(server: StubServer, make: Make) -> None:
    server.play(chat_answer("one"), chat_answer("two"))

    @function
    def talk(s: ProgramState) -> None:
        for idx in range(2):
            s += user(f"say {idx}")
            s += assistant(gen(f"x{idx}"))

    state = talk.run(backend=make())
    assert (state["x0"], state["x1"]) == ("one", "two")
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["say 0", "one", "say 1"]


def test_every_supported_parameter_has_its_field(server: StubServer, make: Make) -> None:
    server.play(
        lambda exchange: exchange.events(
            [chunk({"content": text}, "length", index=idx) for idx, text in enumerate(["a", "b"])]
        )
    )
    options: dict[str, Any] = {
        "n": 2,
        "top_p": 0.9,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "seed": 7,
        "logit_bias": {50: -100.0},
    }
    backend = make(extra_body={"service_tier": "flex"}, max_tokens_field="max_completion_tokens")
    state = ask.run(question="x", backend=backend, **options)
    assert state["answer"] == ["a", "b"]
    assert state.meta("answer").finish_reason == "length"
    body = server.bodies[0]
    assert {key: body[key] for key in options if key != "logit_bias"} == {
        key: value for key, value in options.items() if key != "logit_bias"
    }
    assert body["logit_bias"] == {"50": -100.0}
    assert body["service_tier"] == "flex"
    assert body["max_completion_tokens"] == 128


def test_without_usage_characters_are_counted(server: StubServer, make: Make) -> None:
    server.play(lambda exchange: exchange.events([chunk({"content": "four"}, "stop")]))
    meta = ask.run(question="x", backend=make()).meta("answer")
    assert meta.num_generated_tokens == 4
    assert meta.num_cached_tokens == 0


def test_text_arrives_while_it_is_written(server: StubServer, make: Make) -> None:
    may_end = threading.Event()

    def script(exchange: Exchange) -> None:
        exchange.begin_events()
        exchange.event(chunk({"content": "first"}))
        assert may_end.wait(20)
        exchange.event(chunk({"content": " last"}, "stop"))
        exchange.event("[DONE]")
        exchange.end_events()

    server.script = script
    state = ask.stream(question="x", backend=make())
    pieces = state.text_iter("answer", timeout=20)
    assert next(pieces) == "first"
    may_end.set()
    assert "".join(pieces) == " last"


@pytest.mark.parametrize(
    ("sent", "seen"),
    [(["a\ud83d", "\ude00b"], ["a", "\U0001f600b"]), (["\ud83d", "\ud83d", "\ude00"], ["\ud83d", "\U0001f600"])],
)
def test_halves_of_a_surrogate_pair_are_put_together(
    server: StubServer, make: Make, sent: list[str], seen: list[str]
) -> None:
    pieces = [chunk({"content": piece}) for piece in sent]
    server.play(lambda exchange: exchange.events([*pieces, chunk({}, "stop"), usage()]))
    state = ask.stream(question="x", backend=make())
    assert "".join(state.text_iter("answer", timeout=20)) == "".join(seen) == state["answer"]


def test_half_a_pair_at_the_end_is_kept() -> None:
    draft = SampleDraft()
    assert [draft.add_text(piece) for piece in ("a\ud83d", "", "b\ud83d")] == ["a", "", "\ud83db"]
    assert (draft.end_text(), draft.text, draft.end_text()) == ("\ud83d", "a\ud83db\ud83d", "")


def test_the_stop_string_is_told_where_the_server_tells_it(server: StubServer, make: Make) -> None:
    server.play(chat_answer("one", stop_reason="\n"))
    assert ask.run(question="x", backend=make(), stop="\n").meta("answer").stop_reason == "\n"


def test_logprobs_are_those_of_the_models_tokens(server: StubServer, make: Make) -> None:
    smile = "🙂".encode()

    def token(piece: bytes, logprob: float) -> dict[str, Any]:
        item = {"token": repr(piece), "bytes": list(piece), "logprob": logprob}
        return {**item, "top_logprobs": [item]}

    content = [token(b"Hi ", -0.5), token(smile[:2], -1.0), token(smile[2:], 0.0)]
    server.play(
        lambda exchange: exchange.events([chunk({"content": "Hi 🙂"}, "stop", logprobs={"content": content}), usage()])
    )
    backend = make()
    (sample,) = ask.run(question="x", backend=backend, logprobs=1).meta("answer").samples
    assert (server.bodies[0]["logprobs"], server.bodies[0]["top_logprobs"]) == (True, 1)
    assert sample.logprobs is not None
    assert [item.logprob for item in sample.logprobs] == [-0.5, -1.0, 0.0]
    assert [item.token_id for item in sample.logprobs] == list(sample.token_ids) == list(sample.kept_token_ids)
    assert sample.logprobs[1].top == ((sample.token_ids[1], -1.0),)
    assert backend.decode(sample.token_ids) == "Hi 🙂"


# -- constraints ------------------------------------------------------------------------------------------------------


def test_a_schema_becomes_the_response_format(server: StubServer, make: Make) -> None:
    server.play(chat_answer('{"age": 3}'))
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}

    @function
    def measure(s: ProgramState) -> None:
        s += user("x")
        s += assistant(gen("answer", json_schema=schema))

    state = measure.run(backend=make())
    assert state["answer"] == '{"age": 3}'
    assert state.meta("answer").complete is True
    format = server.bodies[-1]["response_format"]
    assert format == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


@function
def decide(s: ProgramState) -> None:
    s += user("yes or no?")
    s += assistant(gen("answer", choices=["yes", "no"], temperature=1.0))


def test_choices_are_an_enum_of_which_only_the_value_is_seen(server: StubServer, make: Make) -> None:
    server.play(chat_answer('{"choice": "no"}'))
    state = decide.run(backend=make())
    assert "".join(state.text_iter("answer")) == state["answer"] == "no"
    schema = server.bodies[0]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["choice"]["enum"] == ["yes", "no"]


@pytest.mark.parametrize("text", ['{"choice": "perhaps"}', '{"ch', "[1]"])
def test_what_is_none_of_the_choices_is_an_error(server: StubServer, make: Make, text: str) -> None:
    server.play(chat_answer(text, "length"))
    assert "none of the choices: max_tokens=128 cut it off" in str(failure_of(decide.run(backend=make())))


def test_a_text_that_is_cut_off_can_be_made_an_error(server: StubServer, make: Make) -> None:
    server.play(chat_answer('{"ag', "length"))

    @function
    def measure(s: ProgramState) -> None:
        s += user("x")
        s += assistant(gen("answer", json_schema={"type": "object"}, on_incomplete="raise", max_tokens=5))

    assert "max_tokens=5 cut the text off" in str(failure_of(measure.run(backend=make())))


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "[0-9]+"}, r"cannot do regex='\[0-9\]\+': use json_schema"),
        ({"ebnf": 'root ::= "a"'}, "cannot do ebnf="),
        ({"top_k": 5}, "cannot do top_k=5: leave it out"),
        ({"min_p": 0.1}, "cannot do min_p=0.1"),
        ({"min_tokens": 3}, "cannot do min_tokens=3"),
        ({"stop_token_ids": [5]}, r"cannot do stop_token_ids=\(5,\): use stop strings"),
        ({"ignore_eos": True}, "cannot do ignore_eos=True"),
        ({"stop": list("abcde")}, "stop with 5 strings: at most 4"),
        ({"logprobs": 21}, "logprobs with 21: at most 20"),
        ({"json_schema": {}, "json_whitespace": "compact"}, "json_whitespace='compact': the API decides"),
        ({"json_schema": {}, "on_incomplete": "close"}, "on_incomplete='close'"),
    ],
)
def test_what_the_api_lacks_is_refused_and_not_dropped(
    server: StubServer, make: Make, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(GenerationError, match=message) as caught:
        ask.run(question="x", backend=make(), **options)["answer"]
    assert isinstance(caught.value.__cause__, UnsupportedByBackendError)
    assert server.requests == []


def test_a_chat_model_cannot_select_and_says_what_can(server: StubServer, make: Make) -> None:
    @function
    def pick(s: ProgramState) -> None:
        s += user("x")
        s += assistant(select("answer", ["a", "b"]))

    with pytest.raises(GenerationError, match=r"cannot select with a chat model.*choices=\[\.\.\.\]"):
        pick.run(backend=make())["answer"]


@function
def begun(s: ProgramState) -> None:
    s += user("x")
    s += assistant("Answer: " + gen("answer"))


def test_a_begun_message_is_refused_unless_the_server_continues_it(server: StubServer, make: Make) -> None:
    with pytest.raises(GenerationError, match=r"cannot go on with a message that begins with 'Answer: '"):
        begun.run(backend=make())["answer"]
    server.play(chat_answer("42"))
    state = begun.run(backend=make(continues_messages=True))
    assert state.messages()[-1]["content"] == "Answer: 42"
    body = server.bodies[0]
    assert body["messages"][-1] == {"role": "assistant", "content": "Answer: "}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


def test_tools_and_flushing_are_refused(make: Make) -> None:
    backend = make()
    with pytest.raises(UnsupportedByBackendError, match="tools"):
        backend.chat_segments([{"role": "user", "content": "x"}], tools=[{"type": "function"}])
    with pytest.raises(UnsupportedByBackendError, match="'tool' messages"):
        backend.chat_segments([{"role": "tool", "content": "x"}])
    with pytest.raises(UnsupportedByBackendError, match="text only"):
        backend.chat_segments([{"role": "user", "content": [{"type": "image_url"}]}])
    with pytest.raises(UnsupportedByBackendError, match="cannot flush"):
        backend.flush_cache()


def test_half_a_surrogate_pair_is_refused(server: StubServer, make: Make) -> None:
    with pytest.raises(GenerationError, match="lone surrogate"):
        ask.run(question="\ud800", backend=make())["answer"]
    assert server.requests == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout=0 must be a number of seconds"),
        ({"max_retries": -1}, "max_retries=-1 must be"),
        ({"max_concurrency": 0}, r"max_concurrency=0 must lie in \[1, 1000\]"),
    ],
)
def test_bad_arguments_are_refused(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProgramError, match=message):
        make(**options)


def test_a_missing_key_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InvalidProgramError, match="OPENAI_API_KEY"):
        OpenAI("gpt-test")


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_refused_key_is_an_error_with_its_status(server: StubServer, make: Make) -> None:
    server.play(error(401, "Incorrect API key"))
    failure = failure_of(ask.run(question="x", backend=make()))
    assert failure.status == 401
    assert "Incorrect API key" in str(failure)
    assert "check api_key" in str(failure)
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again(server: StubServer, make: Make) -> None:
    server.play(error(429, "slow down", **{"retry-after-ms": "1"}), error(500, "oh"), chat_answer("at last"))
    assert ask.run(question="x", backend=make(max_retries=2))["answer"] == "at last"
    assert len(server.requests) == 3


def test_a_server_that_stays_busy_is_an_error(server: StubServer, make: Make) -> None:
    server.play(error(429, "slow down", **{"Retry-After": "7"}))
    failure = failure_of(ask.run(question="x", backend=make(max_retries=0)))
    assert (failure.status, failure.retry_after_s) == (429, 7.0)
    assert "lower max_concurrency" in str(failure)


def test_a_slow_server_is_an_error(server: StubServer, make: Make) -> None:
    release = threading.Event()
    server.script = lambda exchange: assert_true(release.wait(20))
    failure = failure_of(ask.run(question="x", backend=make(timeout=0.2, max_retries=0)))
    release.set()
    assert "sent nothing for 0.2 s" in str(failure)


def test_no_server_is_an_error(make: Make) -> None:
    backend = make(base_url="http://127.0.0.1:9/v1", max_retries=0)
    assert "check base_url" in str(failure_of(ask.run(question="x", backend=backend)))


def break_off(exchange: Exchange) -> None:
    exchange.begin_events()
    exchange.event(chunk({"content": "half a"}))
    exchange.break_off()


def end_early(exchange: Exchange) -> None:
    exchange.begin_events()
    exchange.event(chunk({"content": "half a"}))
    exchange.end_events()


def fail_inside(exchange: Exchange) -> None:
    exchange.begin_events()
    exchange.event(chunk({"content": "half a"}))
    exchange.event({"error": {"message": "the engine died"}})
    exchange.end_events()


def bad_json(exchange: Exchange) -> None:
    exchange.begin_events()
    exchange.event("{half a")
    exchange.end_events()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (break_off, "the connection to"),
        (end_early, "ended the stream before the text was complete, after 6 characters"),
        (fail_inside, "the engine died"),
        (bad_json, "cannot be read"),
        (chat_answer("", "content_filter"), "finish_reason 'content_filter'"),
        (lambda exchange: exchange.events([chunk({"refusal": "I will not"}, "stop")]), "I will not"),
    ],
)
def test_an_answer_that_is_none_is_an_error(server: StubServer, make: Make, script: Script, message: str) -> None:
    server.play(script)
    state = ask.run(question="x", backend=make())
    assert message in str(failure_of(state))
    with pytest.raises(GenerationError, match=r"gen 'answer' at test_openai_backend.py"):
        state["answer"]


def assert_true(value: bool) -> None:
    assert value


# -- concurrency and the end ------------------------------------------------------------------------------------------


def test_cancelling_closes_the_stream(server: StubServer, make: Make) -> None:
    closed: list[bool] = []
    has_ended = threading.Event()

    def script(exchange: Exchange) -> None:
        exchange.begin_events()
        exchange.event(chunk({"content": "begun"}))
        closed.append(exchange.wait_closed_by_client())
        has_ended.set()

    server.script = script
    state = ask.stream(question="x", backend=make())
    assert next(state.text_iter("answer", timeout=20)) == "begun"
    state.cancel()
    with pytest.raises(ProgramError, match="cancel"):
        state["answer"]
    assert has_ended.wait(20)
    assert closed == [True]


def test_calls_run_at_once_up_to_the_limit_and_on_one_thread(server: StubServer, make: Make) -> None:
    lock = threading.Lock()
    num_running = most = 0
    all_here = threading.Barrier(3)

    def script(exchange: Exchange) -> None:
        nonlocal num_running, most
        with lock:
            num_running += 1
            most = max(most, num_running)
        all_here.wait(20)
        with lock:
            num_running -= 1
        chat_answer(exchange.body["messages"][1]["content"].upper())(exchange)

    server.script = script
    backend = make(max_concurrency=3)
    states = [ask.stream(question=f"q{idx}", backend=backend) for idx in range(9)]
    assert [state["answer"] for state in states] == [f"Q{idx}" for idx in range(9)]
    assert most == 3
    assert sum(thread.name == "ramet-OpenAI" for thread in threading.enumerate()) == 1


def test_closing_ends_what_runs_and_refuses_what_comes(server: StubServer, make: Make) -> None:
    def script(exchange: Exchange) -> None:
        exchange.begin_events()
        exchange.event(chunk({"content": "begun"}))
        exchange.wait_closed_by_client()

    server.script = script
    backend = make()
    state = ask.stream(question="x", backend=backend)
    assert next(state.text_iter("answer", timeout=20)) == "begun"
    backend.close()
    backend.close()
    failure = state.error()
    assert failure is not None
    assert isinstance(failure.__cause__, CallCancelledError)
    with pytest.raises(GenerationError, match="the backend is closed"):
        ask.run(question="x", backend=backend)["answer"]


# -- completion models ------------------------------------------------------------------------------------------------


@function
def complete(s: ProgramState) -> None:
    s += "Once upon"
    s += gen("more", max_tokens=5)
    s += " The " + gen("end")


def test_a_completion_model_goes_on_with_text(server: StubServer, make: Make) -> None:
    server.play(text_answer(" a time.", "length"), text_answer("end."))
    state = complete.run(backend=make("gpt-3.5-turbo-instruct"))
    assert state.text() == "Once upon a time. The end."
    assert [request.path for request in server.requests] == ["/v1/completions"] * 2
    assert [body["prompt"] for body in server.bodies] == ["Once upon", "Once upon a time. The "]
    assert state.meta("more").finish_reason == "length"


def test_a_completion_model_has_no_roles(make: Make) -> None:
    with pytest.raises(ProgramError, match="which has no roles"):
        ask.run(question="x", backend=make("base", is_chat_model=False))["answer"]


def echo(logprobs_of: dict[str, Sequence[tuple[str, float | None]]], *, has_offsets: bool) -> Script:
    """Echoes prompts, cut into tokens as told, and one generated token more."""

    def script(exchange: Exchange) -> None:
        choices = []
        for index, prompt in enumerate(exchange.body["prompt"]):
            items = [*logprobs_of[prompt], ("~", -9.0)]
            tokens = [token for token, _ in items]
            offsets = [len("".join(tokens[:idx])) for idx in range(len(tokens))] if has_offsets else None
            logprobs = {"tokens": tokens, "token_logprobs": [value for _, value in items], "text_offset": offsets}
            choices.append({"index": index, "text": "".join(tokens), "finish_reason": "length", "logprobs": logprobs})
        exchange.json({"id": "c", "object": "text_completion", "created": 0, "model": "m", "choices": choices})

    return script


@pytest.mark.parametrize("has_offsets", [True, False])
def test_a_select_scores_what_the_choices_change(server: StubServer, make: Make, has_offsets: bool) -> None:
    head: list[tuple[str, float | None]] = [("Is", None), (" it", -2.0)]
    server.play(
        echo(
            {
                "Is it so": [*head, (" so", -3.0)],
                "Is it sodium": [*head, (" sod", -4.0), ("ium", -0.5)],
                "Is it so much": [*head, (" so", -3.0), (" much", -1.0)],
            },
            has_offsets=has_offsets,
        )
    )

    @function
    def pick(s: ProgramState) -> None:
        s += "Is it so" + select("x", ["dium", " much"])

    state = pick.run(backend=make("base", is_chat_model=False))
    assert state["x"] == " much"
    assert server.bodies[0]["prompt"] == ["Is it so", "Is it sodium", "Is it so much"]
    # " so" merges with "dium", so both are scored from there on.
    assert [choice.choice.logprobs for choice in state.meta("x").choices] == [(-4.0, -0.5), (-3.0, -1.0)]
    assert state.text() == "Is it so much"


def test_a_server_without_echo_logprobs_cannot_select(server: StubServer, make: Make) -> None:
    server.play(
        lambda exchange: exchange.json(
            {
                "id": "c",
                "object": "text_completion",
                "created": 0,
                "model": "m",
                "choices": [
                    {"index": idx, "text": "x", "finish_reason": "length"}
                    for idx in range(len(exchange.body["prompt"]))
                ],
            }
        )
    )

    @function
    def pick(s: ProgramState) -> None:
        s += "Is it" + select("x", [" a", " b"])

    state = pick.run(backend=make("base", is_chat_model=False))
    assert "gives no logprobs of a prompt" in str(failure_of(state))
