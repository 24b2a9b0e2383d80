"""SoftWrapWriter: streamed text as it is, except that lines too long for the terminal are broken between words."""

from __future__ import annotations

import unicodedata

from .terminal import Terminal

_TAB = "    "


class SoftWrapWriter:
    """Writes pieces of one text as they come. A word appears once the character after it is known.

    Line breaks, indentation and gaps of the text stay; only a gap where a line is broken goes. Without a person who
    looks on, the text is passed on unchanged.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._column = 0
        self._gap = ""
        self._word = ""
        self._ready: list[str] = []

    def write(self, piece: str) -> None:
        if not self._terminal.is_interactive:
            self._terminal.write(piece)
            return
        for character in piece:
            if character == "\n":
                self._end_word()
                self._ready.append("\n")
                self._column, self._gap = 0, ""
            elif character.isspace():
                self._end_word()
                self._gap += _TAB if character == "\t" else character
            elif _width(character) == 2:  # scripts without spaces may be broken anywhere
                self._end_word()
                self._word = character
                self._end_word()
            else:
                self._word += character
        self._show()

    def close(self) -> None:
        """Write what was held back."""
        self._end_word()
        self._show()

    def _end_word(self) -> None:
        if not self._word:
            return
        gap_width, word_width = len(self._gap), sum(map(_width, self._word))
        if self._column and self._column + gap_width + word_width > self._terminal.width:
            self._ready.append("\n" + self._word)
            self._column = word_width
        else:
            self._ready.append(self._gap + self._word)
            self._column += gap_width + word_width
        self._gap = self._word = ""

    def _show(self) -> None:
        if self._ready:
            self._terminal.write("".join(self._ready))
            self._ready.clear()


def _width(character: str) -> int:
    """Columns a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
