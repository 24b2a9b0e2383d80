"""Values of names that no gen or select of their own stands behind: set by the program, or cut out of its text."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import NoReturn

from .callbacks import Callback, Callbacks, Forget, nothing_to_forget
from .calls import Call, CallMeta, Failure
from .errors import InvalidProgramError, ReadTimeoutError
from .reasoning import ReasoningFormat


class Constant:
    """What the program set a name to with `set_var`."""

    def __init__(self, name: str, value: object) -> None:
        self._name = name
        self._value = value

    @property
    def is_done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> None:
        """It is there."""

    def when_done(self, callback: Callback) -> Forget:
        callback()
        return nothing_to_forget

    def get(self, timeout: float | None = None) -> object:
        return self._value

    def metas(self, timeout: float | None = None) -> NoReturn:
        raise InvalidProgramError(f"{self._name!r} was set by the program: no call stands behind it")

    def chunks(self, timeout: float | None = None) -> Iterator[str]:
        """
        Raises:
            InvalidProgramError: the value is no text.
        """
        if not isinstance(self._value, str):
            raise InvalidProgramError(f"{self._name!r} was set to {self._value!r}, which is no text to stream")
        yield self._value


class TextSpan:
    """The text that was added inside `with s.var_scope(name)`. The interpreter settles it once."""

    def __init__(self, name: str, source: str) -> None:
        self.description = f"var_scope {name!r} at {source}"
        self._name = name
        self._outcome: Future[str | Failure] = Future()
        self._when_done = Callbacks()

    def settle(self, outcome: str | Failure) -> None:
        """The text, or why there is none. What is said first holds."""
        if not self._outcome.done():
            self._outcome.set_result(outcome)
            self._when_done.call()

    @property
    def is_done(self) -> bool:
        return self._outcome.done()

    def when_done(self, callback: Callback) -> Forget:
        """Call `callback` once there is an outcome; now if there is. It must not block or raise."""
        forget = self._when_done.add(callback)
        if self._outcome.done():
            self._when_done.call()
        return forget

    def wait(self, timeout: float | None = None) -> None:
        """
        Raises:
            ReadTimeoutError: it is not there within `timeout` seconds.
        """
        try:
            self._outcome.result(timeout)
        except TimeoutError:
            raise ReadTimeoutError(f"{self.description} is not complete after {timeout} s") from None

    def get(self, timeout: float | None = None) -> str:
        """The text; blocks until it is complete.

        Raises:
            GenerationError, ProgramCancelledError: a call in it, or before it, failed.
            ReadTimeoutError: as `wait`.
        """
        self.wait(timeout)
        outcome = self._outcome.result()
        if isinstance(outcome, Failure):
            raise outcome.to_error()
        return outcome

    def metas(self, timeout: float | None = None) -> NoReturn:
        raise InvalidProgramError(f"{self._name!r} is the text of a var_scope: ask the calls in it")

    def chunks(self, timeout: float | None = None) -> Iterator[str]:
        """All of it at once, when it is complete; raises like `get`."""
        yield self.get(timeout)


class Reasoning:
    """What a gen thought before its answer."""

    def __init__(self, call: Call, reasoning: ReasoningFormat) -> None:
        self._call = call
        self._format = reasoning

    @property
    def is_done(self) -> bool:
        return self._call.is_done

    def wait(self, timeout: float | None = None) -> None:
        self._call.wait(timeout)

    def when_done(self, callback: Callback) -> Forget:
        return self._call.when_done(callback)

    def get(self, timeout: float | None = None) -> str | list[str]:
        """The text, a list of them with n > 1; blocks and raises like the gen's own value."""
        (meta,) = self._call.metas(timeout)
        texts = [self._format.split(sample.text)[0] for sample in meta.samples]
        return texts[0] if len(texts) == 1 else texts

    def metas(self, timeout: float | None = None) -> list[CallMeta]:
        return self._call.metas(timeout)

    def chunks(self, timeout: float | None = None) -> Iterator[str]:
        """The first text, at once, when the gen has ended."""
        texts = self.get(timeout)
        yield texts if isinstance(texts, str) else texts[0]
