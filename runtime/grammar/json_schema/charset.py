"""CharSet: a set of Unicode characters, and how one of them is written inside a JSON string."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

_LAST = 0x10FFFF
_SHORT_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}


@dataclass(frozen=True)
class CharSet:
    """Code points as sorted, separate, inclusive ranges. Surrogates are never in it."""

    ranges: tuple[tuple[int, int], ...]

    @staticmethod
    def of(*ranges: tuple[int, int]) -> CharSet:
        merged: list[tuple[int, int]] = []
        for low, high in sorted(ranges):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        return CharSet(tuple(_without(tuple(merged), 0xD800, 0xDFFF)))

    @staticmethod
    def all() -> CharSet:
        return CharSet.of((0, _LAST))

    def inverted(self) -> CharSet:
        found, start = [], 0
        for low, high in self.ranges:
            if start < low:
                found.append((start, low - 1))
            start = high + 1
        return CharSet.of(*found, *([(start, _LAST)] if start <= _LAST else []))

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet.of(*self.ranges, *other.ranges)

    def __contains__(self, code: object) -> bool:
        return isinstance(code, int) and any(low <= code <= high for low, high in self.ranges)


def _without(ranges: tuple[tuple[int, int], ...], low: int, high: int) -> list[tuple[int, int]]:
    found = []
    for start, end in ranges:
        if start < low:
            found.append((start, min(end, low - 1)))
        if end > high:
            found.append((max(start, high + 1), end))
    return found


DIGITS = CharSet.of((0x30, 0x39))
WORD = CharSet.of((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE = CharSet.of(
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
NOT_LINE_END = CharSet.of((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)).inverted()


@cache
def quoted_class(chars: CharSet) -> str:
    """An expression for one character of the set as JSON writes it, each character in one way only.

    A control character, a quote and a backslash are escaped, everything else stands for itself; so texts that differ
    are written differently, and a name can be excluded by its one spelling.
    """
    plain = _without(_without_tuple(_without_tuple(chars.ranges, 0x22, 0x22), 0x5C, 0x5C), 0, 0x1F)
    parts = []
    if plain:
        parts.append("[" + "".join(_range(low, high) for low, high in plain) + "]")
    escaped = [code for code in (*range(0x20), 0x22, 0x5C) if code in chars]
    short = "".join(rf"\x{{{ord(_SHORT_ESCAPES[code]):x}}}" for code in escaped if code in _SHORT_ESCAPES)
    if short:
        parts.append(rf"\\[{short}]")
    long = [code for code in escaped if code not in _SHORT_ESCAPES]
    for high in (0, 1):
        digits = "".join(f"{code & 15:x}" for code in long if code >> 4 == high)
        if digits:
            parts.append(rf"\\u00{high}[{digits}]")
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _without_tuple(ranges: tuple[tuple[int, int], ...], low: int, high: int) -> tuple[tuple[int, int], ...]:
    return tuple(_without(ranges, low, high))


def _range(low: int, high: int) -> str:
    return rf"\x{{{low:x}}}" if low == high else rf"\x{{{low:x}}}-\x{{{high:x}}}"
