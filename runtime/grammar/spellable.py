"""Which characters a vocabulary can spell. Some models lack the tokens of some bytes, so a grammar may allow texts that
cannot be generated; without their characters it has no dead ends of that kind."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .regex.char_sets import (
    FIRST_SURROGATE,
    LAST_SURROGATE,
    MAX_CODE_POINT,
    UTF8_FIRST_CODES,
    CharSet,
    utf8_prefix_chars,
)

_LEAD_BITS = (0x00, 0xC0, 0xE0, 0xF0)


def spellable_chars(spellings: Iterable[bytes]) -> CharSet:
    """The characters that can be spelled whatever stands beside them.

    They are spelled byte by byte, by a token of their own, or by a token for their beginning and the bytes behind it.
    Cost: a few passes over all code points.

    Args:
        spellings: what each token spells.
    """
    pieces = {spelling for spelling in spellings if 0 < len(spelling) <= 4}
    has_byte = np.zeros(256, dtype=np.bool_)
    has_byte[[piece[0] for piece in pieces if len(piece) == 1]] = True
    codes = np.arange(MAX_CODE_POINT + 1)
    is_spellable = np.ones(len(codes), dtype=np.bool_)
    for num_bytes, first in enumerate(UTF8_FIRST_CODES, start=1):
        last = (*UTF8_FIRST_CODES[1:], MAX_CODE_POINT + 1)[num_bytes - 1]
        is_spellable[first:last] = _has_all_bytes(codes[first:last], num_bytes, has_byte)
    for piece in pieces:
        _add_spelled_by(piece, is_spellable, has_byte)
    is_spellable[FIRST_SURROGATE : LAST_SURROGATE + 1] = False
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_spellable, [False])).astype(np.int8)))
    return CharSet.of_ranges((int(start), int(end) - 1) for start, end in zip(edges[::2], edges[1::2], strict=True))


def _has_all_bytes(codes: NDArray[np.int64], num_bytes: int, has_byte: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each byte of each code point, which take `num_bytes` in UTF-8, is a token."""
    has_all: NDArray[np.bool_] = has_byte[_LEAD_BITS[num_bytes - 1] | codes >> 6 * (num_bytes - 1)]
    return has_all & _has_trailing_bytes(codes, num_bytes - 1, has_byte)


def _has_trailing_bytes(codes: NDArray[np.int64], num_trailing: int, has_byte: NDArray[np.bool_]) -> NDArray[np.bool_]:
    has_all = np.ones(len(codes), dtype=np.bool_)
    for position in range(num_trailing):
        has_all &= has_byte[0x80 | codes >> 6 * position & 0x3F]
    return has_all


def _add_spelled_by(piece: bytes, is_spellable: NDArray[np.bool_], has_byte: NDArray[np.bool_]) -> None:
    """Mark the characters that begin with a token of several bytes and go on in single ones. Mutates `is_spellable`."""
    if len(piece) == 1 or has_byte[list(piece)].all():
        return
    try:
        char = piece.decode()
    except UnicodeDecodeError:
        for first, last in utf8_prefix_chars(piece).ranges:
            codes = np.arange(first, last + 1)
            num_bytes = sum(first >= start for start in UTF8_FIRST_CODES)
            is_spellable[first : last + 1] |= _has_trailing_bytes(codes, num_bytes - len(piece), has_byte)
        return
    if len(char) == 1:
        is_spellable[ord(char)] = True
