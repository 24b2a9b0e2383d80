"""Which characters a vocabulary can spell: some lack a byte, and then a text may be allowed that no tokens make."""

from __future__ import annotations

from collections.abc import Iterable

from .regex.char_sets import CharSet, utf8_prefix_chars

_TRAILING_BYTES = frozenset(range(0x80, 0xC0))


def spellable_chars(token_bytes: Iterable[bytes]) -> CharSet:
    """The characters that tokens spell one by one: as a token, or as a token that begins it and single bytes.

    A character that occurs only inside longer tokens is not among them. Nor, where the vocabulary lacks a byte from
    0x80 to 0xBF, is one that is not a token itself.

    Args:
        token_bytes: what each token spells; empty where it spells nothing.
    """
    pieces = {spelling for spelling in token_bytes if 0 < len(spelling) <= 4}
    has_trailing_bytes = all(bytes((byte,)) in pieces for byte in _TRAILING_BYTES)
    chars: list[CharSet] = []
    for piece in pieces:
        char = _as_char(piece)
        if char is not None:
            chars.append(CharSet.of_text(char))
        elif has_trailing_bytes:
            chars.append(utf8_prefix_chars(piece))
    return CharSet.of_ranges(item for some in chars for item in some.ranges)


def _as_char(piece: bytes) -> str | None:
    """The one character that some bytes are, else None."""
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return None
    return text if len(text) == 1 else None
