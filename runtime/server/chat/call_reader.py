"""CallReader: takes a growing text apart into content and tool calls, showing each piece as soon as it is certain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from ....tool_formats import ToolFormat


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the JSON text of the last call's arguments."""

    text: str


Piece = Content | CallBegin | Arguments


class _Place(Enum):
    CONTENT = auto()
    HEAD = auto()  # a mark was read; the name comes
    ARGUMENTS = auto()
    END = auto()  # of a call


@dataclass(slots=True)
class _JsonObject:
    """How far a growing text of a JSON object has come."""

    depth: int = 0
    is_in_string: bool = False
    is_escaped: bool = False
    is_closed: bool = False

    def num_chars_of(self, text: str) -> int:
        """How many of these further characters belong to it."""
        for idx, char in enumerate(text):
            if self.is_closed:
                return idx
            if self.is_in_string:
                self.is_in_string = char != '"' or self.is_escaped
                self.is_escaped = char == "\\" and not self.is_escaped
            elif char == '"':
                self.is_in_string = True
            elif char in "{[":
                self.depth += 1
            elif char in "}]":
                self.depth -= 1
                self.is_closed = self.depth <= 0
        return len(text)


@dataclass(slots=True)
class CallReader:
    """Follows one text, whose calls a grammar enforces; anything else it takes for content. Linear in the text.

    Content never shows a part of a call's mark, nor the white space around calls.

    Args:
        tool_format: how calls are written.
        names: of the tools there are.

    Attributes:
        num_calls: that have begun.
    """

    tool_format: ToolFormat
    names: Sequence[str]
    num_calls: int = 0
    _place: _Place = _Place.CONTENT
    _buffer: str = ""
    _gap: str = ""  # white space before the mark
    _has_content: bool = False
    _has_later_content: bool = False  # since the last call
    _json: _JsonObject = field(default_factory=_JsonObject)

    def feed(self, text: str) -> Iterator[Piece]:
        """What more text adds. To be run to its end."""
        self._buffer += text
        place = None
        while place is not self._place:
            place = self._place
            yield from self._read(place)

    def finish(self, *, is_cut: bool = False) -> Iterator[Piece]:
        """The text has ended. A call that was cut off before its arguments is left out.

        Args:
            is_cut: it would have gone on, so that what it ends with may be the beginning of a mark, which is not shown.
        """
        if self._place is _Place.CONTENT:
            num_hidden = self._num_mark_chars() if is_cut else 0
            shown = self._buffer[: len(self._buffer) - num_hidden]
            yield from self._content(shown.rstrip() if num_hidden else shown)
        self._buffer = ""

    @property
    def is_inside_mark(self) -> bool:
        """The text so far ends with what nobody writes but at the beginning of a call. (The first character of a mark
        is one of the usual ones.)"""
        return self._place is _Place.CONTENT and self._num_mark_chars() > 1

    @property
    def is_behind_call(self) -> bool:
        """The text so far ends with a whole call."""
        return self.num_calls > 0 and self._place is _Place.CONTENT and not self._buffer and not self._has_later_content

    @property
    def is_inside_call(self) -> bool:
        """The text so far ends in the middle of a call."""
        return self._place is not _Place.CONTENT

    def _read(self, place: _Place) -> Iterator[Piece]:
        match place:
            case _Place.CONTENT:
                return self._read_beginning() if self.tool_format.is_whole_text else self._read_up_to_mark()
            case _Place.HEAD:
                return self._read_head()
            case _Place.ARGUMENTS:
                return self._read_arguments()
            case _Place.END:
                return self._read_end()

    def _read_beginning(self) -> Iterator[Piece]:
        """Calls stand at the beginning of the text, one a line."""
        mark = "\n" + self.tool_format.mark if self.num_calls else self.tool_format.mark
        if not self._has_content and self._buffer.startswith(mark):
            self._take(len(mark) - len(self.tool_format.mark))
            self._place = _Place.HEAD
        elif self._has_content or not mark.startswith(self._buffer):
            yield from self._content(self._take(len(self._buffer)))

    def _read_up_to_mark(self) -> Iterator[Piece]:
        mark = self.tool_format.mark
        found = self._buffer.find(mark)
        if found >= 0:
            before = self._take(found)
            shown = before.rstrip()
            yield from self._content(shown)
            self._gap = before[len(shown) :]
            self._place = _Place.HEAD
            return
        shown = self._buffer[: len(self._buffer) - self._num_mark_chars()].rstrip()
        yield from self._content(self._take(len(shown)))

    def _num_mark_chars(self) -> int:
        """How many characters at the end of the text so far may be the beginning of a mark."""
        if self.tool_format.is_whole_text:
            return 0 if self._has_content else len(self._buffer)
        mark = self.tool_format.mark
        return next((n for n in range(len(mark) - 1, 0, -1) if self._buffer.endswith(mark[:n])), 0)

    def _content(self, text: str) -> Iterator[Piece]:
        if self.num_calls and not self._has_content:
            text = text.lstrip()
        if text:
            self._has_content = self._has_later_content = True
            yield Content(text)

    def _read_head(self) -> Iterator[Piece]:
        begins = {name: self.tool_format.call_begin(name) for name in self.names}
        name = next((name for name, begin in begins.items() if self._buffer.startswith(begin)), None)
        if name is not None:
            self._take(len(begins[name]))
            self.num_calls += 1
            self._json = _JsonObject()
            self._has_later_content = False
            self._place = _Place.ARGUMENTS
            yield CallBegin(name)
        elif not any(begin.startswith(self._buffer) for begin in begins.values()):
            self._place = _Place.CONTENT
            yield from self._content(self._gap + self._take(len(self.tool_format.mark)))

    def _read_arguments(self) -> Iterator[Piece]:
        text = self._take(self._json.num_chars_of(self._buffer))
        if text:
            yield Arguments(text)
        if self._json.is_closed:
            self._place = _Place.END

    def _read_end(self) -> Iterator[Piece]:
        end = self.tool_format.call_end
        if self._buffer.startswith(end) or not end.startswith(self._buffer):
            self._buffer = self._buffer.removeprefix(end)
            self._place = _Place.CONTENT
        return iter(())

    def _take(self, num_chars: int) -> str:
        taken, self._buffer = self._buffer[:num_chars], self._buffer[num_chars:]
        return taken
