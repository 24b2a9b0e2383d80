"""Placeholder: stands for a value that is not there when a program is captured ahead of a run.

It can be appended, concatenated and formatted into text, where it stays recognisable. Whatever else a program does with
it would make what follows a guess: comparing it, asking for its length, taking it apart. That ends the capture.

It is no str, although it says so of a gen's text when it is asked with isinstance: `re` or `json` would read the
characters of a str without asking, and take its name for its value.
"""

from __future__ import annotations

import re
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ..calls import call_site
from ..primitives import Concat, Expression, Text

BEGIN, END = "\ufdd0", "\ufdd1"
"""Around a placeholder in text: code points that Unicode reserves for a program's own use, so they are in no text."""

_MARK = re.compile(f"{BEGIN}([^{BEGIN}{END}]*){END}")
_DERIVED = frozenset({"strip", "lstrip", "rstrip", "lower", "upper", "title", "capitalize"})
"""Methods of a string whose result is another text to be shown by name."""


class CaptureStopped(BaseException):
    """Ends the body of a program that is captured. No Exception, so that the body does not take it for its own."""


@dataclass(frozen=True, slots=True)
class StopPoint:
    """Where a capture ended before the program did, and why."""

    reason: str
    source: str


class Capture:
    """A capture under way.

    Args:
        file: where the body of the program is.

    Attributes:
        stopped: set once it has ended early; nothing that the body does after that counts.
    """

    def __init__(self, file: str) -> None:
        self.stopped: StopPoint | None = None
        self._file = file

    def stop(self, reason: str) -> NoReturn:
        """End the capture on the line of the program that is running."""
        self.note_stop(reason, self._source() or call_site())
        raise CaptureStopped(reason)

    def note_stop(self, reason: str, source: str) -> None:
        self.stopped = self.stopped or StopPoint(reason, source)

    def _source(self) -> str | None:
        """The line of the body's file that is running: it may read a value by way of some library."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return None if frame is None else f"{Path(self._file).name}:{frame.f_lineno}"

    def check(self) -> None:
        """A body that went on all the same, past a bare `except`, must not add to the graph."""
        if self.stopped is not None:
            raise CaptureStopped(self.stopped.reason)


CURRENT_CAPTURE: ContextVar[Capture | None] = ContextVar("ramet-capture", default=None)
"""The capture that the body runs under: programs that it runs in turn would be real runs."""


def mark(key: str, name: str) -> str:
    """The text of the placeholder called `name`; `key` says which of those with that name."""
    return f"{BEGIN}{key}:{name}{END}"


def shown(text: str) -> str:
    """Text for people: every placeholder as {name}."""
    return _MARK.sub(lambda match: "{" + match[1].partition(":")[2] + "}", text)


def keys_in(text: str) -> list[str]:
    """The keys of the placeholders in a text, each once, in order."""
    return list(dict.fromkeys(match[1].partition(":")[0] for match in _MARK.finditer(text)))


def constant_start(text: str) -> str:
    """What is before the first placeholder."""
    return text.partition(BEGIN)[0]


class Placeholder(Expression):
    """A value that is not known, or a text with such values in it.

    Args:
        text: with marks.
        kind: what isinstance takes it for; None if nobody knows, so that asking ends the capture.
    """

    __slots__ = ("_capture", "_kind", "_text")

    def __init__(self, capture: Capture, text: str, kind: type | None) -> None:
        self._capture = capture
        self._text = text
        self._kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        if self._kind is None:
            self._stop("the type of ")
        return self._kind

    def parts(self) -> tuple[Expression, ...]:
        return (Text(self._text),)

    def __add__(self, other: Any) -> Any:
        if type(other) is Placeholder:
            return Placeholder(self._capture, self._text + other._text, str)
        if type(other) is str:
            return Placeholder(self._capture, self._text + other, str)
        if isinstance(other, Expression):
            return Concat(self.parts() + other.parts())
        return self._stop()

    def __radd__(self, other: Any) -> Any:
        if type(other) is str:
            return Placeholder(self._capture, other + self._text, str)
        if isinstance(other, Expression):
            return Concat(other.parts() + self.parts())
        return self._stop()

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return self._derived(f":{spec}") if spec else self._text

    def _derived(self, how: str) -> str:
        """This with something done to it: still recognisable, and of the same call."""
        keys = keys_in(self._text)
        return mark(keys[0] if keys else "", shown(self._text).removeprefix("{").removesuffix("}") + how)

    def _stop(self, what: str = "") -> NoReturn:
        self._capture.stop(f"the program reads {what}{shown(self._text)}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _DERIVED:
            return lambda: Placeholder(self._capture, self._derived(f".{name}()"), str)
        return self._stop(f".{name} of ")

    def __eq__(self, other: object) -> bool:
        self._stop()

    def __ne__(self, other: object) -> bool:
        self._stop()

    def __hash__(self) -> int:
        return self._stop()

    def __bool__(self) -> bool:
        return self._stop()

    def __len__(self) -> int:
        return self._stop("the length of ")

    def __iter__(self) -> NoReturn:
        self._stop()

    def __contains__(self, item: object) -> bool:
        self._stop()

    def __getitem__(self, item: object) -> NoReturn:
        self._stop()

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        self._stop()

    def __int__(self) -> int:
        self._stop()

    def __float__(self) -> float:
        self._stop()

    def __index__(self) -> int:
        return self._stop()

    def _refuse(self, other: object) -> NoReturn:
        self._stop()

    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __mul__ = __rmul__ = __sub__ = __rsub__ = __mod__ = __rmod__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _refuse
