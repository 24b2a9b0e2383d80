"""WrappedWriter: streamed text broken between words, with a hanging indent."""

from __future__ import annotations

import re

from .terminal import Terminal

_WORD_OR_SPACE = re.compile(r"\n|[^\S\n]+|\S+")


class WrappedWriter:
    """Writes pieces of one text as they come. A word appears once the character after it is known.

    Args:
        indent: columns of every line but the first, where the caller has already filled as many.
    """

    def __init__(self, terminal: Terminal, indent: int) -> None:
        self._terminal = terminal
        self._indent = indent
        self._width = max(terminal.width, indent + 20)
        self._column = indent
        self._held = ""
        self._gap = ""

    def write(self, piece: str) -> None:
        parts = _WORD_OR_SPACE.findall(self._held + piece)
        self._held = parts.pop() if parts and parts[-1] != "\n" else ""
        for part in parts:
            self._put(part)

    def close(self) -> None:
        """Write what was held back and end the line. Blanks at the end of the text are left out."""
        if self._held.strip():
            self._put(self._held)
        self._terminal.write("\n")

    def _put(self, part: str) -> None:
        if part == "\n":
            self._gap = "\n"
        elif part.isspace():
            self._gap = self._gap or " "
        else:
            is_too_long = self._column + len(self._gap) + len(part) > self._width
            if self._column > self._indent and (self._gap == "\n" or (self._gap and is_too_long)):
                self._terminal.write("\n" + " " * self._indent)
                self._column = self._indent
            elif self._column > self._indent:
                self._terminal.write(self._gap)
                self._column += len(self._gap)
            self._terminal.write(part)
            self._column += len(part)
            self._gap = ""
