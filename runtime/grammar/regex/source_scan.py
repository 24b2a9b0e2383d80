"""Where things stand in the source of a regular expression.

Python's parser says what a pattern means but not where its pieces are. This scan finds the positions of what matters
for messages: constructs that are always refused, anchors, counted repeats and how deep groups nest. It trusts nothing:
on an invalid pattern it returns something, and the parser's own error is reported instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .char_sets import FIRST_SURROGATE, LAST_SURROGATE

_COUNTED = re.compile(r"\{(?:([0-9]*),([0-9]*)|([0-9]+))\}")
_FLAGS = re.compile(r"\(\?([aiLmsux]*)(?:-([imsx]+))?([:)])")
_OCTAL_ESCAPE = re.compile(r"\\(?:0[0-7]{0,2}|[0-7]{3})")
_CODE_POINT = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")
_NAMED_CHAR = re.compile(r"\\N\{[^}]*\}")

_REFUSED_GROUPS = {
    "(?=": "look-ahead looks at text that is not generated yet",
    "(?!": "look-ahead looks at text that is not generated yet",
    "(?<=": "look-behind is not supported",
    "(?<!": "look-behind is not supported",
    "(?P=": "a back-reference repeats text that is not known in advance",
    "(?(": "a conditional group depends on text that is not known in advance",
    "(?>": "an atomic group depends on the order in which a matcher tries things; use (?:...)",
}
_BACK_REFERENCE = "a back-reference repeats text that is not known in advance"
_BOUNDARY = "a word boundary looks at text on both sides; spell out the characters instead"
_POSSESSIVE = "a possessive quantifier depends on the order in which a matcher tries things; drop the last +"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A construct that is always refused: where it is and why."""

    position: int
    reason: str


@dataclass(slots=True)
class SourceScan:
    r"""What was found, in the order of the source.

    Attributes:
        anchors: positions of `^`, `$`, `\A` and `\Z`, with their text.
        counts: positions of `{m,n}` with their larger number.
        too_deep_at: position of the first group beyond the allowed nesting, None where there is none.
        refusal: the first construct that is always refused.
    """

    anchors: list[tuple[int, str]] = field(default_factory=list)
    counts: list[tuple[int, int]] = field(default_factory=list)
    too_deep_at: int | None = None
    refusal: Refusal | None = None


def scan_source(pattern: str, max_nesting: int) -> SourceScan:
    """Cost: one pass over the pattern."""
    scanner = _Scanner(pattern, max_nesting)
    scanner.run()
    return scanner.found


class _Scanner:
    """A position in the pattern, and whether (?x) holds in each open group."""

    def __init__(self, pattern: str, max_nesting: int) -> None:
        self.found = SourceScan()
        self._pattern = pattern
        self._max_nesting = max_nesting
        self._position = 0
        self._is_verbose = [False]

    def run(self) -> None:
        while self._position < len(self._pattern):
            self._construct(self._pattern[self._position])

    def _construct(self, char: str) -> None:
        """Go past the construct that starts here."""
        if char == "\\":
            self._escape()
        elif char == "[":
            self._class()
        elif char == "(":
            self._open_group()
        elif char == ")":
            if len(self._is_verbose) > 1:
                self._is_verbose.pop()
            self._position += 1
        elif char in "^$":
            self._anchor(char)
        elif char in "*+?":
            self._position += 1
            self._quantifier_suffix()
        elif char == "{":
            self._braces()
        elif char == "#" and self._is_verbose[-1]:
            end = self._pattern.find("\n", self._position)
            self._position = len(self._pattern) if end < 0 else end + 1
        else:
            self._position += 1

    def _refuse(self, reason: str) -> None:
        if self.found.refusal is None:
            self.found.refusal = Refusal(self._position, reason)

    def _anchor(self, text: str) -> None:
        self.found.anchors.append((self._position, text))
        self._position += len(text)

    def _escape(self) -> None:
        text = self._pattern[self._position : self._position + 2]
        if text in ("\\A", "\\Z"):
            self._anchor(text)
            return
        longer = _OCTAL_ESCAPE.match(self._pattern, self._position) or _NAMED_CHAR.match(self._pattern, self._position)
        if longer is None and text[1:] in tuple("123456789"):
            self._refuse(_BACK_REFERENCE)
        elif text in ("\\b", "\\B"):
            self._refuse(_BOUNDARY)
        code = _CODE_POINT.match(self._pattern, self._position)
        if code is not None and FIRST_SURROGATE <= int(code[1] or code[2], 16) <= LAST_SURROGATE:
            self._refuse("a lone surrogate cannot be generated: UTF-8 has none")
        self._position = self._position + 2 if longer is None else longer.end()

    def _class(self) -> None:
        position = self._position + 1
        if self._pattern.startswith("^", position):
            position += 1
        first = position
        while position < len(self._pattern) and (self._pattern[position] != "]" or position == first):
            position += 2 if self._pattern[position] == "\\" else 1
        self._position = position + 1

    def _open_group(self) -> None:
        if self._pattern.startswith("(?#", self._position):
            end = self._pattern.find(")", self._position)
            self._position = len(self._pattern) if end < 0 else end + 1
            return
        flags = _FLAGS.match(self._pattern, self._position)
        if flags is not None and flags[3] == ")":
            self._is_verbose[-1] |= "x" in flags[1]
            self._position = flags.end()
            return
        for opening, reason in _REFUSED_GROUPS.items():
            if self._pattern.startswith(opening, self._position):
                self._refuse(reason)
        if len(self._is_verbose) > self._max_nesting and self.found.too_deep_at is None:
            self.found.too_deep_at = self._position
        is_verbose = self._is_verbose[-1]
        if flags is not None:
            is_verbose = (is_verbose or "x" in flags[1]) and "x" not in (flags[2] or "")
        self._is_verbose.append(is_verbose)
        self._position = self._after_opening(flags)

    def _after_opening(self, flags: re.Match[str] | None) -> int:
        if flags is not None:
            return flags.end()
        if self._pattern.startswith("(?P<", self._position):
            end = self._pattern.find(">", self._position)
            return len(self._pattern) if end < 0 else end + 1
        if self._pattern.startswith("(?", self._position):
            return self._position + 3
        return self._position + 1

    def _braces(self) -> None:
        counted = _COUNTED.match(self._pattern, self._position)
        if counted is None:
            self._position += 1
            return
        digits = counted[3] or counted[2] or counted[1]
        if digits:
            self.found.counts.append((self._position, int(digits[:9])))
        self._position = counted.end()
        self._quantifier_suffix()

    def _quantifier_suffix(self) -> None:
        if self._pattern.startswith("+", self._position):
            self._refuse(_POSSESSIVE)
        if self._pattern.startswith(("?", "+"), self._position):
            self._position += 1
