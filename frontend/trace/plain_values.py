"""jsonable: whatever a program was given or made, as values that JSON has. It never fails: a trace must come about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized

from ..surrogates import joined_pairs

MAX_TEXT_CHARS = 100_000
MAX_ITEMS = 10_000
_MAX_REPR_CHARS = 2000
_MAX_DEPTH = 20
_MAX_INT_BITS = 4096
"""Python refuses to write longer numbers than 4,300 digits, and to read them."""


def jsonable(value: object) -> object:
    """The value if JSON has a form for it, lists for tuples; else its repr, cut at 2,000 characters.

    Texts are cut at 100,000 characters and what holds more than 10,000 items, those within its items included, after
    these; a note says so. What raises when it is looked at is named with its error.
    """
    return _Walk().plain(value, 0)


class _Walk:
    """One value, with how many items may still be shown of it."""

    def __init__(self) -> None:
        self._num_left = MAX_ITEMS

    def plain(self, value: object, depth: int) -> object:
        try:
            return self._plain(value, depth)
        except Exception as error:  # of the value's own methods
            return f"<{type(value).__name__} that raised {type(error).__name__}>"

    def _plain(self, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return _cut(str.__str__(value), MAX_TEXT_CHARS)
        if type(value) is int:
            bits = value.bit_length()
            return value if bits <= _MAX_INT_BITS else f"<int of {bits:,} bits>"
        if type(value) is float and math.isfinite(value):
            return value
        if depth < _MAX_DEPTH and isinstance(value, Mapping):
            return self._object(value, depth)
        if depth < _MAX_DEPTH and isinstance(value, list | tuple):
            return self._list(value, depth)
        return _repr(value)

    def _object(self, value: Mapping[object, object], depth: int) -> dict[str, object]:
        shown: dict[str, object] = {}
        for key, item in value.items():
            if not self._take():
                shown["..."] = _cut_note(value)
                break
            shown[_cut(str.__str__(key), _MAX_REPR_CHARS) if isinstance(key, str) else _repr(key)] = self.plain(
                item, depth + 1
            )
        return shown

    def _list(self, value: list[object] | tuple[object, ...], depth: int) -> list[object]:
        shown: list[object] = []
        for item in value:
            if not self._take():
                shown.append(_cut_note(value))
                break
            shown.append(self.plain(item, depth + 1))
        return shown

    def _take(self) -> bool:
        self._num_left -= 1
        return self._num_left >= 0


def _cut_note(value: Sized) -> str:
    return f"... (cut: the whole {type(value).__name__} has {len(value):,} items)"


def _repr(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return _cut(repr(value[:_MAX_REPR_CHARS]), _MAX_REPR_CHARS)
    if isinstance(value, Sized) and len(value) > MAX_ITEMS:
        return f"<{type(value).__name__} of {len(value):,} items>"
    try:
        text = repr(value)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return _cut(text, _MAX_REPR_CHARS)


def _cut(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return joined_pairs(text)
    rest = f"... ({len(text):,} characters in all)" if max_chars == MAX_TEXT_CHARS else "..."
    return joined_pairs(text[:max_chars]) + rest
