"""CharSet: a set of characters as sorted ranges of code points.

Surrogates (U+D800 to U+DFFF) are never members: a generated text is UTF-8, which cannot spell them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

MAX_CODE_POINT = 0x10FFFF
FIRST_SURROGATE, LAST_SURROGATE = 0xD800, 0xDFFF
# The first code point that takes 1, 2, 3 and 4 bytes in UTF-8.
UTF8_FIRST_CODES = (0, 0x80, 0x800, 0x10000)

CodeRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CharSet:
    """A set of characters.

    Attributes:
        ranges: (first, last) code points, both included; sorted, disjoint and not adjacent, so that equal sets compare
            equal. Build one with `CharSet.of_ranges` unless the ranges are known to be so.
    """

    ranges: tuple[CodeRange, ...]

    @classmethod
    def of_ranges(cls, ranges: Iterable[CodeRange]) -> CharSet:
        """The union of ranges in any order; surrogates are left out. Cost: O(n log n)."""
        merged: list[CodeRange] = []
        for first, last in sorted(_without_surrogates(ranges)):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def of_text(cls, text: str) -> CharSet:
        """The characters of a text."""
        return cls.of_ranges((ord(char), ord(char)) for char in text)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, char: str) -> bool:
        code = ord(char)
        idx = bisect_right(self.ranges, (code, MAX_CODE_POINT)) - 1
        return idx >= 0 and code <= self.ranges[idx][1]

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet.of_ranges((*self.ranges, *other.ranges))

    def __and__(self, other: CharSet) -> CharSet:
        shared: list[CodeRange] = []
        mine, theirs = 0, 0
        while mine < len(self.ranges) and theirs < len(other.ranges):
            first = max(self.ranges[mine][0], other.ranges[theirs][0])
            last = min(self.ranges[mine][1], other.ranges[theirs][1])
            if first <= last:
                shared.append((first, last))
            if self.ranges[mine][1] < other.ranges[theirs][1]:
                mine += 1
            else:
                theirs += 1
        return CharSet(tuple(shared))

    def __sub__(self, other: CharSet) -> CharSet:
        return self & other.complement()

    def complement(self) -> CharSet:
        """Every other character."""
        gaps: list[CodeRange] = []
        next_code = 0
        for first, last in self.ranges:
            gaps.append((next_code, first - 1))
            next_code = last + 1
        gaps.append((next_code, MAX_CODE_POINT))
        return CharSet.of_ranges(gaps)

    @property
    def num_chars(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    @property
    def only_char(self) -> str | None:
        """The one member of a set of one, else None."""
        if len(self.ranges) == 1 and self.ranges[0][0] == self.ranges[0][1]:
            return chr(self.ranges[0][0])
        return None

    def preferred_char(self) -> str | None:
        """A member that is short in UTF-8 and pleasant to read: a digit or letter, else something printable, else the
        first; None of an empty set."""
        if not self.ranges:
            return None
        for wished in (_DIGITS, _LETTERS, _PRINTABLE_ASCII):
            shared = self & wished
            if shared:
                return chr(shared.ranges[0][0])
        return chr(self.ranges[0][0])


def _without_surrogates(ranges: Iterable[CodeRange]) -> Iterable[CodeRange]:
    for first, last in ranges:
        if first < FIRST_SURROGATE and first <= last:
            yield first, min(last, FIRST_SURROGATE - 1)
        if last > LAST_SURROGATE and first <= last:
            yield max(first, LAST_SURROGATE + 1), last


NO_CHARS = CharSet(())
ALL_CHARS = CharSet(((0, FIRST_SURROGATE - 1), (LAST_SURROGATE + 1, MAX_CODE_POINT)))
_DIGITS = CharSet.of_ranges([(ord("0"), ord("9"))])
_LETTERS = CharSet.of_ranges([(ord("a"), ord("z")), (ord("A"), ord("Z"))])
_PRINTABLE_ASCII = CharSet.of_ranges([(ord(" "), ord("~"))])


def utf8_len(char: str) -> int:
    """Bytes of a character in UTF-8."""
    return bisect_right(UTF8_FIRST_CODES, ord(char))


def utf8_prefix_chars(beginning: bytes) -> CharSet:
    """The characters whose UTF-8 form begins with some bytes and is longer; empty where there is none.

    Args:
        beginning: at least one byte.
    """
    lead, *trailing = beginning
    num_bytes = 2 if 0xC2 <= lead <= 0xDF else 3 if 0xE0 <= lead <= 0xEF else 4 if 0xF0 <= lead <= 0xF4 else 0
    num_missing = num_bytes - len(beginning)
    if num_missing < 1 or any(byte & 0xC0 != 0x80 for byte in trailing):
        return NO_CHARS
    code = lead & (0x7F >> num_bytes)
    for byte in trailing:
        code = code << 6 | byte & 0x3F
    first = max(code << 6 * num_missing, UTF8_FIRST_CODES[num_bytes - 1])
    last = min(((code + 1) << 6 * num_missing) - 1, MAX_CODE_POINT)
    return CharSet.of_ranges([(first, last)])
