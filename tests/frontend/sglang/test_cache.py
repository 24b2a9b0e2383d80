"""f.cache(backend): what all runs begin with is computed ahead, on request only."""

from __future__ import annotations

from typing import Any

import pytest

import ramet as sgl

PREFIX = "Answer the question in one word.\n"


@sgl.function
def few_shot(s: Any, question: str, *, shots: int = 1) -> None:
    s += PREFIX
    s += "Q: a A: b\n" * shots
    s += "Q: " + question
    s += " A:" + sgl.gen("answer")


def cached_text(program: sgl.Program) -> str:
    """The one prompt that `cache` sends."""
    backend = sgl.MockBackend()
    num_tokens = program.cache(backend)
    assert num_tokens == (len(backend.requests[0].call.prompt_token_ids) if backend.requests else 0)
    assert len(backend.requests) <= 1
    return backend.requests[0].prompt if backend.requests else ""


def test_the_prefix_ends_where_an_argument_decides() -> None:
    assert cached_text(few_shot) == PREFIX + "Q: a A: b\nQ: "
    assert cached_text(few_shot.bind(shots=2)) == PREFIX + "Q: a A: b\n" * 2 + "Q: "
    assert cached_text(few_shot.bind(question="c?")) == PREFIX + "Q: a A: b\nQ: c? A:"


def test_runs_find_it_in_the_cache() -> None:
    backend = sgl.MockBackend()
    num_tokens = few_shot.cache(backend)
    assert few_shot.run("c?", backend=backend).meta("answer").num_cached_tokens == num_tokens


def test_whatever_asks_a_placeholder_ends_the_prefix() -> None:
    uses: list[Any] = [
        lambda s, x: s.append(f"{x}"),
        lambda s, x: s.append(str(x)),
        lambda s, x: s.append("yes" if x else "no"),
        lambda s, x: s.append("yes" if x == 1 else "no"),
        lambda s, x: s.append(x["key"]),
        lambda s, x: s.append(x.name),
        lambda s, x: [s.append("item") for _ in x],
        lambda s, x: s.append({"a": "b"}[x]),
        lambda s, x: s.append("-" * x),
        lambda s, x: s["never"],
        lambda s, x: s.append(sgl.select("y", ["a", "b"])),
        lambda s, x: s.append(1 / 0),
    ]
    for idx, use in enumerate(uses):

        def body(s: Any, x: Any, use: Any = use) -> None:
            s += "begin "
            use(s, x)
            s += "never reached" + sgl.gen("z")

        assert cached_text(sgl.function(body)) == "begin ", idx


def test_a_fork_does_not_end_it() -> None:
    def body(s: Any, x: Any) -> None:
        s += "begin "
        s.fork(2)
        s += "and go on" + sgl.gen("z") + x

    assert cached_text(sgl.function(body)) == "begin and go on"


def test_roles_and_nested_programs_belong_to_it() -> None:
    @sgl.function
    def rules(s: Any, name: str) -> None:
        s += sgl.system("Be brief.")
        with s.user():
            s += "My name is " + name

    @sgl.function
    def chat(s: Any, name: str) -> None:
        rules(s, name)
        s += sgl.assistant(sgl.gen("x"))

    assert cached_text(chat) == "<|start|>system\nBe brief.<|end|>\n<|start|>user\nMy name is "


def test_a_program_without_a_beginning_sends_nothing() -> None:
    @sgl.function
    def none(s: Any, text: str) -> None:
        s += text + sgl.gen("x")

    assert cached_text(none) == ""


def test_an_async_program_has_one_too() -> None:
    @sgl.function
    async def later(s: Any, name: str) -> None:
        s += "text" + sgl.gen("x")
        s += f"{await s['x']}, {name}" + sgl.gen("y")

    assert cached_text(later) == "text"


def test_what_cannot_be_computed_says_so() -> None:
    with pytest.raises(sgl.GenerationError, match="gone"):
        few_shot.cache(sgl.MockBackend([RuntimeError("gone")]))


@pytest.mark.model
def test_a_model_computes_it_once(smollm2: sgl.LLM) -> None:
    with sgl.LocalBackend(smollm2) as backend:
        backend.flush_cache()
        num_tokens = few_shot.cache(backend)
        meta = few_shot.run("c?", backend=backend, max_tokens=1).meta("answer")
        assert num_tokens - 1 <= meta.num_cached_tokens <= num_tokens
