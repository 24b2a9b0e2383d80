"""What programs run on: a backend, or what a local one is made of; anything else is refused at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ramet import LLM, LocalBackend
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.default_backend import as_backend, get_default_backend, set_default_backend
from ramet.frontend.errors import InvalidProgramError
from ramet.frontend.primitives import gen
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState
from ramet.runtime.models.errors import ModelLoadError


@pytest.fixture(autouse=True)
def no_default() -> Iterator[None]:
    yield
    set_default_backend(None)


@function
def ask(s: ProgramState, question: str) -> None:
    s += question + gen("answer", max_tokens=2, temperature=0.0)


def test_programs_run_on_the_default_backend_that_was_set() -> None:
    backend = MockBackend("ok")
    set_default_backend(backend)
    assert get_default_backend() is backend
    assert ask.run("x")["answer"] == "ok"
    assert [state["answer"] for state in ask.run_batch([("y",)])] == ["ok"]
    own = MockBackend("own")
    assert ask.run("x", backend=own)["answer"] == "ow"
    assert len(backend.requests) == 2


@pytest.mark.parametrize("value", [42, "", "  ", MockBackend, b"smollm2", ["smollm2"], {"backend": "mock"}])
@pytest.mark.parametrize(
    "use",
    [
        set_default_backend,
        lambda value: ask.run("x", backend=value),
        lambda value: ask.stream("x", backend=value),
        lambda value: ask.run_batch([("x",)], backend=value),
    ],
)
def test_anything_else_is_refused_at_once(use: Callable[[object], object], value: object) -> None:
    backend = MockBackend("ok")
    set_default_backend(backend)
    with pytest.raises(InvalidProgramError, match=r"programs cannot run on .*: give a backend object \(local, mock, "):
        use(value)
    assert get_default_backend() is backend
    assert backend.requests == []


def test_a_model_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(ModelLoadError, match=r"no-such\.gguf"):
        set_default_backend("no-such.gguf")
    with pytest.raises(ModelLoadError, match=r"no-such\.gguf"):
        ask.run("x", backend="no-such.gguf")


@pytest.mark.model
def test_an_llm_is_a_backend_that_is_opened_once(smollm2: LLM) -> None:
    set_default_backend(smollm2)
    backend = get_default_backend()
    assert isinstance(backend, LocalBackend)
    assert backend.llm is smollm2
    assert as_backend(smollm2) is backend
    assert ask.run("The sky is", backend=smollm2)["answer"] == ask.run("The sky is")["answer"] != ""
    backend.close()
    after = as_backend(smollm2)
    assert after is not backend
    assert ask.run("The sky is", backend=after).error() is None
    assert isinstance(after, LocalBackend)
    after.close()


@pytest.mark.model
def test_a_model_name_loads_the_model_once() -> None:
    backend = as_backend("smollm2")
    assert isinstance(backend, LocalBackend)
    assert get_default_backend() is backend  # the default model has this name
    assert ask.run("The sky is", backend="smollm2")["answer"] == ask.run("The sky is", backend=backend)["answer"]
    backend.close()
