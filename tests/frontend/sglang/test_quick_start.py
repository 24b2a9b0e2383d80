"""Scripts as SGLang's quick start has them: one question, several turns, streams, batches, roles in every spelling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ramet as sgl

USER, ASSISTANT, END = "<|start|>user\n", "<|start|>assistant\n", "<|end|>\n"


@pytest.fixture
def backend() -> Iterator[sgl.MockBackend]:
    backend = sgl.MockBackend(["Paris.", "London.", "Rome."])
    sgl.set_default_backend(backend)
    yield backend
    sgl.set_default_backend(None)


@sgl.function
def multi_turn_question(s: Any, question_1: str, question_2: str) -> None:
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=256))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=256))


def test_a_conversation_on_the_default_backend(backend: sgl.MockBackend) -> None:
    state = multi_turn_question.run(question_1="France?", question_2="England?")
    shown = [(message["role"], message["content"]) for message in state.messages()]
    assert shown == [
        ("system", "You are a helpful assistant."),
        ("user", "France?"),
        ("assistant", "Paris."),
        ("user", "England?"),
        ("assistant", "London."),
    ]
    assert (state["answer_1"], state.get_var("answer_2")) == ("Paris.", "London.")
    assert state.text().endswith(f"{USER}England?{END}{ASSISTANT}London.{END}")
    assert state.get_meta_info("answer_2")["cached_tokens"] > state.get_meta_info("answer_1")["prompt_tokens"]


def test_a_stream_gives_the_same_text_as_the_state(backend: sgl.MockBackend) -> None:
    state = multi_turn_question.run(question_1="France?", question_2="England?", temperature=0.1, stream=True)
    assert "".join(state.text_iter()) == state.text()
    assert "".join(state.text_iter(var_name_of_second())) == "London."


def var_name_of_second() -> str:
    return "answer_2"


def test_a_batch_takes_sglangs_arguments(backend: sgl.MockBackend) -> None:
    @sgl.function
    def ask(s: Any, question: str) -> None:
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", stop="."))

    states = ask.run_batch(
        [{"question": "France?"}, ("England?",)], temperature=0, max_new_tokens=16, backend=backend, progress_bar=False
    )
    assert sorted(state["answer"] for state in states) == ["London", "Paris"]
    params = [request.call.sampling_params for request in backend.requests]  # type: ignore[union-attr]
    assert {(item.temperature, item.max_tokens, item.stop_strings) for item in params} == {(0, 16, (".",))}
    assert ask.run_batch([]) == []


def test_roles_in_every_spelling_write_the_same_text(backend: sgl.MockBackend) -> None:
    @sgl.function
    def as_calls(s: Any) -> None:
        s += sgl.user("Hi")
        s += sgl.assistant("A: " + sgl.gen("x"))

    @sgl.function
    def as_begin_and_end(s: Any) -> None:
        s += sgl.user_begin() + "Hi" + sgl.user_end()
        s += sgl.assistant_begin()
        s += "A: "
        s += sgl.gen("x")
        s += sgl.assistant_end()

    @sgl.function
    def as_blocks(s: Any) -> None:
        with s.user():
            s += "Hi"
        with s.assistant():
            s += "A: " + sgl.gen("x")

    @sgl.function
    def as_methods(s: Any) -> None:
        s.user("Hi")
        s.assistant(["A: ", sgl.gen("x")])

    programs = (as_calls, as_begin_and_end, as_blocks, as_methods)
    texts = {program.run(backend=sgl.MockBackend("Bye")).text() for program in programs}
    assert texts == {f"{USER}Hi{END}{ASSISTANT}A: Bye{END}"}


def test_a_local_function_may_return_a_value(backend: sgl.MockBackend) -> None:
    @sgl.function
    def returns(s: Any) -> str:
        s += "Capital of France: " + sgl.gen("capital")
        answer: str = s["capital"]
        return answer.rstrip(".")

    assert returns.run().ret_value == "Paris"


def test_the_backend_says_what_it_is_and_forgets(backend: sgl.MockBackend) -> None:
    multi_turn_question.run(question_1="France?", question_2="England?").sync()
    assert sgl.get_server_info()["backend"] == "mock"
    sgl.flush_cache()
    state = multi_turn_question.bind(question_1="France?").run(question_2="", backend=sgl.MockBackend("Rome."))
    assert state.error() is None
    first = multi_turn_question.run(question_1="a", question_2="b", backend=backend)
    assert first.get_meta_info("answer_1")["cached_tokens"] == 0
    assert sgl.get_server_info(backend)["num_requests"] == len(backend.requests)


def test_sampling_arguments_of_run_are_the_defaults_of_every_gen() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += "q" + sgl.gen("a") + sgl.gen("b", temperature=0.0, stop_regex="[0-9]", return_logprob=False)

    backend = sgl.MockBackend("text 1")
    state = program.run(
        max_new_tokens=64,
        n=1,
        stop=["X"],
        stop_token_ids=[3],
        stop_regex="x+",
        temperature=0.7,
        top_p=0.9,
        top_k=20,
        min_p=0.01,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        ignore_eos=True,
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=2,
        return_text_in_logprobs=True,
        backend=backend,
        use_thread=False,
    )
    a, b = (request.call.sampling_params for request in backend.requests)  # type: ignore[union-attr]
    assert (a.max_tokens, a.stop_strings, a.stop_regexes, a.temperature, a.top_k) == (64, ("X",), ("x+",), 0.7, 20)
    assert (a.logprobs, a.prompt_logprobs, b.logprobs, b.prompt_logprobs) == (2, 2, None, None)
    assert (b.temperature, b.stop_regexes, b.top_p) == (0.0, ("[0-9]",), 0.9)
    assert (state["a"], state["b"]) == ("te", "text ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_thread": 1}, "use_thread=1"),
        ({"return_logprob": 1}, "return_logprob=1"),
        ({"return_logprob": False, "top_logprobs_num": 2}, "return_logprob=False"),
        ({"top_logprobs_num": -1}, "top_logprobs_num=-1"),
        ({"logprob_start_len": -2}, "logprob_start_len=-2"),
        ({"logprobs": 1, "return_logprob": True}, "logprobs=1"),
    ],
)
def test_bad_arguments_of_run_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        multi_turn_question.run("a", "b", backend=sgl.MockBackend(), **options)


def test_positional_arguments_of_gen_are_sglangs() -> None:
    positional = sgl.gen("x", 9, 2, 1, "s", [3], "r", 0.5, 0.9, 7, 0.1, 0.2, 0.3, True, True, 0, 4, True, int)
    by_name = sgl.gen(
        "x",
        max_tokens=9,
        min_tokens=2,
        n=1,
        stop="s",
        stop_token_ids=[3],
        stop_regex="r",
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        ignore_eos=True,
        logprobs=4,
        dtype=int,
        return_text_in_logprobs=None,
    )
    assert positional.parts()[0].options == {  # type: ignore[attr-defined]
        **by_name.parts()[0].options,  # type: ignore[attr-defined]
        "prompt_logprobs": 4,
        "prompt_logprobs_start": 0,
    }
