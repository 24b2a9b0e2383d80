"""RuntimeEndpoint: what is sent to a server of SGLang and to one of ramet, and what becomes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ramet.frontend.backends.errors import BackendCallError, UnsupportedByBackendError
from ramet.frontend.backends.runtime_endpoint import RuntimeEndpoint
from ramet.frontend.backends.text_ids import TOKEN_BASE
from ramet.frontend.errors import GenerationError, InvalidProgramError, ProgramError
from ramet.frontend.primitives import assistant, gen, select, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState

from .fake_runtime import FakeRuntime
from .stub_server import Exchange, Script, StubServer

Make = Callable[..., RuntimeEndpoint]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def make(server: StubServer) -> Iterator[Make]:
    made: list[RuntimeEndpoint] = []

    def make(script: Script | None = None, **options: Any) -> RuntimeEndpoint:
        if script is not None:
            server.script = script
        made.append(RuntimeEndpoint(server.url, **{"timeout": 10.0, "max_retries": 0, **options}))
        server.requests.clear()
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def sglang(reply: str = " yes.", **options: Any) -> FakeRuntime:
    return FakeRuntime(lambda prompt: reply, is_ramet=False, **options)


def ramet(reply: str = " yes.", **options: Any) -> FakeRuntime:
    return FakeRuntime(lambda prompt: reply, is_ramet=True, **options)


def generates(server: StubServer) -> list[dict[str, Any]]:
    return [request.body for request in server.requests if request.path == "/generate"]


def failure_of(state: ProgramState) -> BackendCallError:
    failure = state.error()
    assert failure is not None
    assert isinstance(failure.__cause__, BackendCallError), failure.__cause__
    return failure.__cause__


@function
def ask(s: ProgramState, **options: Any) -> None:
    s += "Is it so?" + gen("answer", **options)


# -- a server of SGLang -----------------------------------------------------------------------------------------------


def test_text_is_sent_with_sglangs_names(server: StubServer, make: Make) -> None:
    backend = make(sglang(), api_key="secret")
    state = ask.run(
        backend=backend,
        max_tokens=40,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.1,
        min_tokens=2,
        seed=3,
        stop=["\n"],
        stop_token_ids=[9],
        regex="[a-z .]+",
    )
    assert state["answer"] == " yes."
    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer secret"
    assert request.body == {
        "text": "Is it so?",
        "sampling_params": {
            "max_new_tokens": 40,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 7,
            "min_p": 0.1,
            "frequency_penalty": 0.5,
            "presence_penalty": -0.5,
            "repetition_penalty": 1.1,
            "min_new_tokens": 2,
            "sampling_seed": 3,
            "stop": ["\n"],
            "stop_token_ids": [9],
            "regex": "[a-z .]+",
        },
        "stream": True,
    }
    meta = state.meta("answer")
    assert (meta.num_prompt_tokens, meta.num_cached_tokens, meta.num_generated_tokens) == (9, 0, 5)
    assert (meta.finish_reason, meta.stop_reason, meta.complete) == ("stop", None, True)


def test_a_schema_and_a_grammar_are_passed_on(server: StubServer, make: Make) -> None:
    backend = make(sglang("{}"))
    assert ask.run(backend=backend, json_schema={"type": "object"})["answer"] == "{}"
    assert ask.run(backend=backend, ebnf='root ::= "{}"')["answer"] == "{}"
    sent = [body["sampling_params"] for body in generates(server)]
    assert sent[0]["json_schema"] == '{"type": "object"}'
    assert sent[1]["ebnf"] == 'root ::= "{}"'


def test_what_only_ramet_knows_is_refused_elsewhere(server: StubServer, make: Make) -> None:
    @function
    def pick(s: ProgramState) -> None:
        s += "Is it so?" + gen("answer", choices=["a", "b"], temperature=1.0)

    with pytest.raises(GenerationError, match=r"cannot do choices=\('a', 'b'\)"):
        pick.run(backend=make(sglang("a")))["answer"]
    assert server.requests == []
    assert pick.run(backend=make(ramet("a")))["answer"] == "a"
    assert generates(server)[0]["sampling_params"]["choices"] == ["a", "b"]


def test_text_arrives_while_it_is_written(server: StubServer, make: Make) -> None:
    state = ask.stream(backend=make(sglang("one two")))
    assert "".join(state.text_iter("answer", timeout=20)) == "one two"


def test_several_samples_are_one_request(server: StubServer, make: Make) -> None:
    state = ask.run(backend=make(sglang()), n=3)
    assert state["answer"] == [" yes."] * 3
    (body,) = generates(server)
    assert "stream" not in body
    assert state.meta("answer").num_generated_tokens == 15


def test_logprobs_are_those_of_the_servers_tokens(server: StubServer, make: Make) -> None:
    backend = make(sglang(" yes.", merges=[" yes"]))
    (sample,) = ask.run(backend=backend, logprobs=2).meta("answer").samples
    (body,) = generates(server)
    assert (body["return_logprob"], body["top_logprobs_num"]) == (True, 2)
    assert sample.logprobs is not None
    assert [backend.decode([item.token_id]) for item in sample.logprobs] == [" yes", "."]
    assert [item.token_id for item in sample.logprobs] == list(sample.token_ids) == list(sample.kept_token_ids)
    assert len(sample.logprobs[0].top) == 2


def test_the_chat_template_is_the_servers(server: StubServer, make: Make) -> None:
    backend = make(sglang("hi", model_info={"chat_template": CHATML}))

    @function
    def talk(s: ProgramState) -> None:
        s += user("Hello <b>")
        s += assistant(gen("answer"))

    assert talk.run(backend=backend).messages()[-1]["content"] == "hi"
    assert generates(server)[0]["text"] == "<|im_start|>user\nHello <b><|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("chatml", "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"),
        (
            "llama-3-instruct",
            "user<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("gemma-it", "<start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n"),
        ("default", "USER:Hello\nASSISTANT:"),
    ],
)
def test_or_one_of_a_name(server: StubServer, make: Make, name: str, text: str) -> None:
    backend = make(sglang("hi"), chat_template_name=name)

    @function
    def talk(s: ProgramState) -> None:
        s += user("Hello")
        s += assistant(gen("answer"))

    assert talk.run(backend=backend)["answer"] == "hi"
    assert generates(server)[0]["text"].endswith(text)


def test_without_one_roles_are_refused(make: Make) -> None:
    backend = make(sglang())

    @function
    def talk(s: ProgramState) -> None:
        s += user("Hello")

    failure = talk.run(backend=backend).error()
    assert "give chat_template_name, one of chatml, default" in str(failure)
    with pytest.raises(InvalidProgramError, match="did you mean 'chatml'"):
        make(chat_template_name="chatm")


def test_a_text_that_would_be_taken_for_a_mark_is_refused(server: StubServer, make: Make) -> None:
    @function
    def talk(s: ProgramState) -> None:
        s += user("Hello<|im_end|>")
        s += assistant(gen("answer"))

    with pytest.raises(GenerationError, match=r"holds '<\|im_end\|>'.*chat template's own mark") as caught:
        talk.run(backend=make(sglang(), chat_template_name="chatml"))["answer"]
    assert isinstance(caught.value.__cause__, UnsupportedByBackendError)
    assert server.requests == []


# -- selects ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_fake", [sglang, ramet])
@pytest.mark.parametrize("prompt", ["Is it so", "It is a long way, and nobody knows it all, so"])
def test_a_select_scores_what_the_choices_change(
    server: StubServer, make: Make, make_fake: Callable[..., FakeRuntime], prompt: str
) -> None:
    backend = make(make_fake(merges=[" so", " sod", "ium", " much", "e"]))

    @function
    def pick(s: ProgramState) -> None:
        s += prompt + select("x", ["dium", " much", "e"], choices_method="sum")

    state = pick.run(backend=backend)
    # " so" merges with "dium", so all are scored from there on; the likelihood of a token is that of its length.
    assert [choice.choice.logprobs for choice in state.meta("x").choices] == [(-4.0, -3.0), (-3.0, -5.0), (-3.0, -1.0)]
    assert state["x"] == "e"
    assert state.text() == prompt + "e"


def test_choices_may_begin_each_other(server: StubServer, make: Make) -> None:
    @function
    def pick(s: ProgramState) -> None:
        s += "Is it" + select("x", [" a", " ab"], choices_method="greedy_token_selection")

    choices = pick.run(backend=make(sglang())).meta("x").choices
    assert [choice.choice.logprobs for choice in choices] == [(-1.0, -1.0), (-1.0, -1.0, -1.0)]
    assert choices[0].choice.end_logprob == pytest.approx(-0.4586751)
    assert choices[1].choice.end_logprob == 0.0


def test_the_likelihood_without_the_text_is_compared_where_it_can_be(server: StubServer, make: Make) -> None:
    @function
    def pick(s: ProgramState) -> None:
        s += "Is it" + select("x", [" a", " b"], choices_method="unconditional_likelihood_normalized")

    assert pick.run(backend=make(sglang()))["x"] == " a"

    @function
    def merge(s: ProgramState) -> None:
        s += "Is it" + select("x", ["a", "b"], choices_method="unconditional_likelihood_normalized")

    with pytest.raises(GenerationError, match="use another choices_method"):
        merge.run(backend=make(sglang(merges=["ta"])))["x"]


# -- a server of ramet ------------------------------------------------------------------------------------------------


def test_what_was_generated_is_sent_again_as_the_ids_it_came_as(server: StubServer, make: Make) -> None:
    fake = ramet(" yes", merges=[" y", "es", " yes", "es, "])

    @function
    def talk(s: ProgramState) -> None:
        s += "Is it?" + gen("a", max_tokens=9) + ", " + gen("b")

    backend = make(fake)
    state = talk.run(backend=backend)
    state.sync()
    (sample,) = state.meta("a").samples
    generated = [token_id - TOKEN_BASE for token_id in sample.kept_token_ids]
    assert [fake.text_of(token_id) for token_id in generated] == [" yes"]
    first, second = generates(server)
    assert first["input_ids"] == fake.ids_of("Is it?")
    assert second["input_ids"] == [*first["input_ids"], *generated, *fake.ids_of(", ")]
    assert backend.decode(state.token_ids()) == "Is it? yes,  yes"
    assert state.meta("b").num_cached_tokens == len(first["input_ids"]) + 1


def test_only_the_template_makes_special_tokens(server: StubServer, make: Make) -> None:
    fake = ramet("hi", model_info={"chat_template": CHATML})

    @function
    def talk(s: ProgramState) -> None:
        s += user("Hello<|im_end|>")
        s += assistant(gen("answer"))

    assert talk.run(backend=make(fake))["answer"] == "hi"
    (body,) = generates(server)
    assert "".join(map(fake.text_of, body["input_ids"])) == (
        "<|im_start|>user\nHello<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert [fake.text_of(token_id) for token_id in body["input_ids"]].count("<|im_end|>") == 1


def test_a_stop_string_inside_a_token_leaves_the_rest_as_text(server: StubServer, make: Make) -> None:
    fake = ramet("one, two", merges=["one", ", t"])

    @function
    def talk(s: ProgramState) -> None:
        s += "Count:" + gen("a", stop=" ") + "|" + gen("b")

    state = talk.run(backend=make(fake))
    state.sync()
    (sample,) = state.meta("a").samples
    assert (sample.text, sample.leftover_text, state.meta("a").stop_reason) == ("one,", ",", " ")
    assert [fake.text_of(token_id - TOKEN_BASE) for token_id in sample.kept_token_ids] == ["one"]
    assert [fake.text_of(token_id) for token_id in generates(server)[1]["input_ids"]][-3:] == ["one", ",", "|"]


def test_a_text_is_tokenised_once(server: StubServer, make: Make) -> None:
    backend = make(ramet())
    for _ in range(3):
        assert ask.run(backend=backend)["answer"] == " yes."
    assert [request.path for request in server.requests].count("/tokenize") == 1
    assert [request.path for request in server.requests].count("/detokenize") == 1


def test_another_server_can_be_asked_to_tokenise(server: StubServer, make: Make) -> None:
    fake = sglang()
    assert ask.run(backend=make(fake, use_token_ids=True))["answer"] == " yes."
    assert server.requests[0].body == {"prompt": "Is it so?", "add_special_tokens": True}
    assert generates(server)[0]["input_ids"] == fake.ids_of("Is it so?")


def test_ids_stay_exact_without_their_spelling(server: StubServer, make: Make) -> None:
    fake = ramet(" yes")

    def script(exchange: Exchange) -> None:
        if exchange.path == "/detokenize":
            exchange.json({"detail": "Not Found"}, 404)
        else:
            fake(exchange)

    @function
    def talk(s: ProgramState) -> None:
        s += "Is it?" + gen("a") + "," + gen("b")

    state = talk.run(backend=make(script))
    assert state.text() == "Is it? yes, yes"
    assert generates(server)[1]["input_ids"] == fake.ids_of("Is it? yes,")


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_the_cache_can_be_filled_and_flushed(server: StubServer, make: Make) -> None:
    backend = make(sglang())
    backend.cache_prefix("Is it so?")
    assert generates(server)[0] == {"text": "Is it so?", "sampling_params": {"max_new_tokens": 0}}
    assert ask.run(backend=backend).meta("answer").num_cached_tokens == 8
    backend.flush_cache()
    assert ask.run(backend=backend).meta("answer").num_cached_tokens == 0
    assert backend.get_server_info()["num_requests"] == 1


def test_a_server_of_another_age_has_another_path(server: StubServer, make: Make) -> None:
    def script(exchange: Exchange) -> None:
        if exchange.path == "/model_info":
            exchange.json({"model_path": "new"})
        else:
            exchange.json({"detail": "Not Found"}, 404)

    assert make(script).info()["model"] == "new"


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(BackendCallError, match="check base_url"):
        RuntimeEndpoint("http://127.0.0.1:9", max_retries=0)
    with pytest.raises(InvalidProgramError, match="must be a URL"):
        RuntimeEndpoint("localhost:30000")


def answer_with(payload: object, status: int = 200, **headers: str) -> Script:
    fake = sglang()

    def script(exchange: Exchange) -> None:
        if exchange.path == "/generate":
            exchange.json(payload, status, headers)
        else:
            fake(exchange)

    return script


def stream_of(*events: object, breaks: bool = False) -> Script:
    fake = sglang()

    def script(exchange: Exchange) -> None:
        if exchange.path != "/generate":
            return fake(exchange)
        exchange.begin_events()
        for event in events:
            exchange.event(event)
        if breaks:
            return exchange.break_off()
        return exchange.end_events()

    return script


def event(text: str, **meta: Any) -> dict[str, Any]:
    return {"text": text, "meta_info": {"finish_reason": None, **meta}}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (answer_with({"error": {"message": "prompt too long"}}, 400), "HTTP 400: prompt too long"),
        (answer_with({"detail": "who are you"}, 401), "HTTP 401: who are you (check api_key)"),
        (answer_with({"error": "full"}, 503), "HTTP 503: full"),
        (stream_of(event("half"), {"error": {"message": "the engine died"}}), "the engine died"),
        (stream_of(event("half"), breaks=True), "the connection to"),
        (stream_of(event("half")), "ended the stream before"),
        (stream_of(event("half"), event("a"), "[DONE]"), "not cumulative"),
        (stream_of("nonsense"), "no JSON object"),
        (stream_of(event("", finish_reason={"type": "abort", "message": "gave up"}), "[DONE]"), "gave up"),
        (stream_of({"text": "x"}, "[DONE]"), "gave no 1 answers"),
        (stream_of(event("x", finish_reason={"type": "what"}), "[DONE]"), "none that is known"),
    ],
)
def test_an_answer_that_is_none_is_an_error(server: StubServer, make: Make, script: Script, message: str) -> None:
    assert message in str(failure_of(ask.run(backend=make(script))))


def test_a_server_without_prompt_logprobs_cannot_select(server: StubServer, make: Make) -> None:
    @function
    def pick(s: ProgramState) -> None:
        s += "Is it" + select("x", [" a", " b"])

    one = {"text": "", "meta_info": {"prompt_tokens": 3, "finish_reason": None}}

    def script(exchange: Exchange) -> None:
        if exchange.path == "/generate":
            exchange.json([one] * 3 if isinstance(exchange.body["text"], list) else one)
        else:
            sglang()(exchange)

    assert "cannot select" in str(failure_of(pick.run(backend=make(script))))


def test_a_full_server_is_asked_again(server: StubServer, make: Make) -> None:
    fake, refusals = sglang(), [429, 503]

    def script(exchange: Exchange) -> None:
        if exchange.path == "/generate" and refusals:
            exchange.json({"error": "full"}, refusals.pop(0), {"Retry-After": "0"})
        else:
            fake(exchange)

    assert ask.run(backend=make(script, max_retries=2))["answer"] == " yes."
    assert len(server.requests) == 3


def test_cancelling_closes_the_stream(server: StubServer, make: Make) -> None:
    closed: list[bool] = []
    fake = sglang()

    def script(exchange: Exchange) -> None:
        if exchange.path != "/generate":
            return fake(exchange)
        exchange.begin_events()
        exchange.event(event("begun"))
        return closed.append(exchange.wait_closed_by_client())

    backend = make(script)
    state = ask.stream(backend=backend)
    assert next(state.text_iter("answer", timeout=20)) == "begun"
    state.cancel()
    with pytest.raises(ProgramError, match="cancel"):
        state["answer"]
    backend.close()
    server.close()  # waits for the script
    assert closed == [True]
