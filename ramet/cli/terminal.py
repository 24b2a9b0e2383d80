"""Terminal: plain text out, with colour only where a person is looking at it."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import TextIO

_DIM, _BOLD, _GREEN, _RED, _YELLOW, _CYAN = "2", "1", "32", "31", "33", "36"


class Terminal:
    """Writes to one stream, at once. No escape codes without a terminal, on a dumb one or with NO_COLOR set."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self.is_interactive = self._stream.isatty()
        self.has_colour = (
            self.is_interactive and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb")
        )

    @property
    def width(self) -> int:
        """Columns to fill: the terminal's, at most 100."""
        return min(shutil.get_terminal_size((80, 24)).columns, 100)

    def write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def line(self, text: str = "") -> None:
        self.write(text + "\n")

    def wrapped(self, text: str, indent: int = 0) -> str:
        """Text without styles, broken between words to fit the width where a person is looking at it.

        Args:
            indent: columns to leave free before every line; of the first one, they are the caller's to fill.
        """
        if not self.is_interactive:
            return text
        lines = [
            line
            for paragraph in text.split("\n")
            for line in textwrap.wrap(
                paragraph,
                max(self.width - indent, 20),
                replace_whitespace=False,
                break_long_words=False,
                break_on_hyphens=False,
            )
            or [""]
        ]
        return ("\n" + " " * indent).join(lines)

    def bold(self, text: str) -> str:
        return self._styled(text, _BOLD)

    def dim(self, text: str) -> str:
        return self._styled(text, _DIM)

    def good(self, text: str) -> str:
        return self._styled(text, _GREEN)

    def bad(self, text: str) -> str:
        return self._styled(text, _RED)

    def warn(self, text: str) -> str:
        return self._styled(text, _YELLOW)

    def accent(self, text: str) -> str:
        return self._styled(text, _CYAN)

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.has_colour and text else text
