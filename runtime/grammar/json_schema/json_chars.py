"""How a character of a set is written inside a JSON string."""

from __future__ import annotations

from functools import lru_cache

from ..regex.char_sets import CharSet

_SHORT_ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
_ESCAPED_CODES = (*range(0x20), 0x22, 0x5C)
_ESCAPED = CharSet.of_ranges((code, code) for code in _ESCAPED_CODES)


def writable_chars(spellable: CharSet) -> CharSet:
    """The characters a JSON string can hold where only some can be spelled: escapes are spelled in ASCII."""
    return spellable | _ESCAPED


@lru_cache(maxsize=4096)
def quoted_class(chars: CharSet) -> str:
    """An expression for one character of a set, which is not empty, as JSON writes it, each in one way only.

    A control character, a quote and a backslash are escaped, everything else stands for itself; so texts that differ
    are written differently, and a name can be excluded by its one spelling.
    """
    plain = chars - _ESCAPED
    parts = []
    if plain:
        parts.append("[" + "".join(_range(low, high) for low, high in plain.ranges) + "]")
    escaped = [code for code in _ESCAPED_CODES if chr(code) in chars]
    short = "".join(rf"\x{{{ord(_SHORT_ESCAPES[code]):x}}}" for code in escaped if code in _SHORT_ESCAPES)
    if short:
        parts.append(rf"\\[{short}]")
    long = [code for code in escaped if code not in _SHORT_ESCAPES]
    for high in (0, 1):
        digits = "".join(f"{code & 15:x}" for code in long if code >> 4 == high)
        if digits:
            parts.append(rf"\\u00{high}[{digits}]")
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _range(low: int, high: int) -> str:
    return rf"\x{{{low:x}}}" if low == high else rf"\x{{{low:x}}}-\x{{{high:x}}}"
