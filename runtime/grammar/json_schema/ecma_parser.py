"""A parser for the regular expressions of ECMA-262 that JSON Schema uses; what it does not know is refused."""

from __future__ import annotations

from functools import lru_cache

from ..regex.analysis import num_positions
from ..regex.char_sets import CharSet
from .ecma_regex import Anchor, Chars, Choice, Node, RegexRefusedError, Repeat, Sequence, as_regex, whole_text
from .text_pattern import TextPattern

MAX_REPEAT = 100_000
MAX_POSITIONS = 200_000
_MAX_DEPTH = 60
_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_DIGITS = CharSet.of_ranges([(0x30, 0x39)])
_WORD = CharSet.of_ranges([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
_SPACE = CharSet.of_text(
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
_NOT_LINE_END = CharSet.of_text("\n\r\u2028\u2029").complement()
_CLASSES = {
    "d": _DIGITS, "w": _WORD, "s": _SPACE, "D": _DIGITS.complement(), "W": _WORD.complement(), "S": _SPACE.complement(),
}  # fmt: skip


@lru_cache(maxsize=1024)
def parse_search_pattern(pattern: str) -> TextPattern:
    """The texts in which an ECMA-262 pattern is found.

    Raises:
        RegexRefusedError: it is not valid, uses look-around, `\\b`, a back-reference or `\\p`, or is too large.
    """
    if len(pattern) > 20_000:
        raise RegexRefusedError("it is longer than 20000 characters")
    node = whole_text(_Parser(pattern).parse())
    regex = as_regex(node)
    if num_positions(regex) > MAX_POSITIONS:
        raise RegexRefusedError("its repeats make it too large")
    return TextPattern(pattern, regex)


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0
        self.depth = 0

    def parse(self) -> Node:
        node = self._choice()
        if self.position < len(self.pattern):
            raise self._error("')' without '('")
        return node

    def _error(self, reason: str) -> RegexRefusedError:
        return RegexRefusedError(f"{reason} (position {self.position} of {self.pattern[:120]!r})")

    def _peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.position)

    def _take(self, text: str) -> bool:
        if self._peek(text):
            self.position += len(text)
            return True
        return False

    def _next(self) -> str:
        if self.position >= len(self.pattern):
            raise self._error("it ends too early")
        self.position += 1
        return self.pattern[self.position - 1]

    def _choice(self) -> Node:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self._error(f"groups are nested deeper than {_MAX_DEPTH}")
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self.depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self.position < len(self.pattern) and not self._peek("|") and not self._peek(")"):
            items.append(self._repeated(self._atom()))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _repeated(self, item: Node) -> Node:
        bounds: tuple[int, int | None] | None = None
        if self._take("*"):
            bounds = 0, None
        elif self._take("+"):
            bounds = 1, None
        elif self._take("?"):
            bounds = 0, 1
        elif self._take("{"):
            bounds = self._counts()
        if bounds is None:
            return item
        if isinstance(item, Anchor):
            raise self._error("an anchor cannot be repeated")
        self._take("?")  # a lazy repeat matches the same texts
        if any(self._peek(sign) for sign in "*+?{"):
            raise self._error("a repeat of a repeat needs a group")
        return Repeat(item, *bounds)

    def _counts(self) -> tuple[int, int | None]:
        end = self.pattern.find("}", self.position)
        low, comma, high = self.pattern[self.position : max(end, self.position)].partition(",")
        digits = [low, *([high] if high else [])]
        if end < 0 or not all(part.isascii() and part.isdigit() and len(part) < 7 for part in digits):
            raise self._error("a repeat must be {n}, {n,} or {n,m} with small numbers")
        self.position = end + 1
        first = int(low)
        last = int(high) if high else None if comma else first
        if max(first, last or 0) > MAX_REPEAT or (last is not None and last < first):
            raise self._error(f"a repeat must be in order and at most {MAX_REPEAT}")
        return first, last

    def _atom(self) -> Node:
        character = self._next()
        if character in "^$":
            return Anchor(character == "^")
        if character == "(":
            return self._group()
        if character == "[":
            return Chars(self._class())
        if character == ".":
            return Chars(_NOT_LINE_END)
        if character == "\\":
            return Chars(self._escape(in_class=False))
        if character in "*+?{}]":
            self.position -= 1
            raise self._error(f"{character!r} must be escaped")
        return Chars(_one(ord(character)))

    def _group(self) -> Node:
        if self._take("?"):
            if self._take("<") and not (self._peek("=") or self._peek("!")):
                name = self.pattern[self.position : self.pattern.find(">", self.position)]
                if not name.isidentifier():
                    raise self._error("a group has a bad name")
                self.position += len(name) + 1
            elif not self._take(":"):
                raise self._error("look-around and inline flags cannot be enforced")
        node = self._choice()
        if not self._take(")"):
            raise self._error("'(' without ')'")
        return node

    def _class(self) -> CharSet:
        is_inverted = self._take("^")
        chars = CharSet(())
        while not self._take("]"):
            first = self._class_item()
            # A '-' before ']' is itself.
            if self._peek("-") and not self._peek("-]"):
                self._take("-")
                last = self._class_item()
                if not (_is_one(first) and _is_one(last)) or last.ranges[0][0] < first.ranges[0][0]:
                    raise self._error("a range needs two characters in order")
                first = CharSet.of_ranges([(first.ranges[0][0], last.ranges[0][0])])
            chars |= first
        return chars.complement() if is_inverted else chars

    def _class_item(self) -> CharSet:
        character = self._next()
        return self._escape(in_class=True) if character == "\\" else _one(ord(character))

    def _escape(self, *, in_class: bool) -> CharSet:
        letter = self._next()
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter == "0" and self.position < len(self.pattern) and self.pattern[self.position].isdigit():
            raise self._error("octal escapes are not allowed")
        if letter in _CONTROL:
            return _one(_CONTROL[letter])
        if letter == "b" and in_class:
            return _one(8)
        if letter == "c":
            control = self._next()
            if not (control.isascii() and control.isalpha()):
                raise self._error("'\\c' needs a letter")
            return _one(ord(control) % 32)
        if letter == "x":
            return _one(self._hex(2))
        if letter == "u":
            return _one(self._unicode())
        if letter.isalnum():
            raise self._error(f"'\\{letter}' cannot be enforced")
        return _one(ord(letter))

    def _unicode(self) -> int:
        if self._take("{"):
            end = self.pattern.find("}", self.position)
            code = self._hex(max(end - self.position, 0))
            self._take("}")
        else:
            code = self._hex(4)
            if 0xD800 <= code < 0xDC00 and self._take("\\u"):
                low = self._hex(4)
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) if 0xDC00 <= low < 0xE000 else 0xD800
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise self._error("this escape is no character")
        return code

    def _hex(self, num_digits: int) -> int:
        digits = self.pattern[self.position : self.position + num_digits]
        if (
            len(digits) < num_digits
            or not 0 < num_digits <= 8
            or any(d not in "0123456789abcdefABCDEF" for d in digits)
        ):
            raise self._error("an escape needs hexadecimal digits")
        self.position += num_digits
        return int(digits, 16)


def _one(code: int) -> CharSet:
    return CharSet.of_ranges([(code, code)])


def _is_one(chars: CharSet) -> bool:
    return len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]
