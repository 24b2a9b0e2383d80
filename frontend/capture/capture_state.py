"""States of a program that is captured: values are placeholders, and what only a run can tell ends the capture."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, NoReturn

from ..async_state import AsyncProgramState, Read
from ..backend import Message
from ..bound_values import Constant, Reasoning, TextSpan
from ..calls import Call
from ..scope import Scope
from ..state import ProgramState
from ..values import Joined, OnError, Value
from .capture_run import CaptureRun
from .placeholder import Capture, Placeholder, constant_start, mark

_VALUE_TYPES = {"int": int, "float": float, "bool": bool, "str": str}


class CaptureJoined(Joined):
    """A placeholder for each branch."""

    def __init__(self, capture: Capture, name: str, values: Sequence[Value], on_error: OnError) -> None:
        super().__init__(name, values, on_error)
        self._capture = capture

    def get(self, timeout: float | None = None) -> list[Any]:
        return [_placeholder(self._capture, f"{self.name}[{idx}]", value) for idx, value in enumerate(self.values)]


def _placeholder(capture: Capture, name: str, value: Value) -> Any:
    """What stands for a value: a list of placeholders where the value is a list, what is known as it is."""
    if isinstance(value, CaptureJoined | Constant):
        return value.get()
    if isinstance(value, TextSpan):
        return _text(capture, value.get())
    if isinstance(value, Reasoning):
        return Placeholder(capture, mark(name, name), str)
    assert isinstance(value, Call)
    key, params, value_type = str(value.record.call_id), value.record.sampling_params, value.value_type
    kind = str if value_type is None else _VALUE_TYPES.get(value_type.name)
    if params is not None and params.n > 1:
        return [Placeholder(capture, mark(key, f"{name}[{idx}]"), kind) for idx in range(params.n)]
    return Placeholder(capture, mark(key, name), kind)


def _text(capture: Capture, text: str) -> Any:
    """The text itself, or a placeholder if calls have written some of it."""
    return text if constant_start(text) == text else Placeholder(capture, text, str)


def _capture_of(scope: Scope) -> Capture:
    assert isinstance(scope.run, CaptureRun)
    return scope.run.capture


class CaptureState(ProgramState):
    """A state whose values are placeholders. What only a run can tell ends the capture."""

    def get(self, name: str, timeout: float | None = None) -> Any:
        return _placeholder(self._capture, name, self._scope.lookup(name, None, until_body_over=False))

    @property
    def _capture(self) -> Capture:
        return _capture_of(self._scope)

    def _lookup(self, name: str, timeout: float | None) -> Value:
        self._scope.lookup(name, None, until_body_over=False)
        self._capture.stop(f"the program reads how {name!r} came about")

    def text(self, timeout: float | None = None) -> Any:
        return _text(self._capture, self._scope.interpreter.transcript.text())

    text_so_far = text

    def messages(self, timeout: float | None = None) -> list[Message]:
        messages = self._scope.interpreter.messages()
        if any(constant_start(each["content"]) != each["content"] for each in messages):
            self._capture.stop("the program reads messages that calls have written")
        return messages

    def snapshot(self, timeout: float | None = None) -> NoReturn:
        self._capture.stop("a conversation goes on from the program")

    def token_ids(self, timeout: float | None = None) -> NoReturn:
        self._capture.stop("the program reads token ids")

    def text_iter(self, name: str | None = None, timeout: float | None = None) -> Iterator[str]:
        self._capture.stop("the program reads text as it comes")

    def text_async_iter(self, *_: object, **__: object) -> NoReturn:
        self._capture.stop("the program reads text as it comes")

    def error(self) -> NoReturn:
        self._capture.stop("the program reads whether something failed")

    def cancel(self) -> NoReturn:
        self._capture.stop("the program cancels itself")


class AsyncCaptureState(AsyncProgramState):
    """The same for a body that is a coroutine: its reads are awaited, and wait for nothing."""

    @property
    def _plain(self) -> CaptureState:
        return CaptureState(self._scope)

    def __getitem__(self, name: str) -> Read[Any]:
        return Read(f"s[{name!r}]", lambda: self.get(name))

    async def get(self, name: str, timeout: float | None = None) -> Any:
        return self._plain.get(name)

    async def text(self, timeout: float | None = None) -> Any:
        return self._plain.text()

    async def messages(self, timeout: float | None = None) -> list[Message]:
        return self._plain.messages()

    def _lookup(self, name: str) -> Value:
        return self._plain._lookup(name, None)

    def text_so_far(self) -> Any:
        return self._plain.text()

    async def token_ids(self, timeout: float | None = None) -> NoReturn:
        self._plain.token_ids()

    def text_iter(self, name: str | None = None, timeout: float | None = None) -> AsyncIterator[str]:
        _capture_of(self._scope).stop("the program reads text as it comes")

    async def error(self) -> NoReturn:
        self._plain.error()

    def cancel(self) -> NoReturn:
        self._plain.cancel()
