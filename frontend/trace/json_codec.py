"""Dataclasses as JSON values and back, by the types of their fields.

A field that has its default is left out. JSON has no infinities: they are the strings "inf", "-inf" and "nan". It has
no way either to write two surrogates side by side that are not one character: such a text is {"pieces": [...]}. A field
of type `object`, or a mapping of strings to objects, holds JSON already and stays as it is.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ..surrogates import split_pairs

_MAX_SHOWN_CHARS = 60
_PIECES = "pieces"
_INT_LIMIT = 1 << 63
"""No count, id or time is as large; and nothing that is computed from smaller ones overflows."""

T = TypeVar("T")


class JsonShapeError(ValueError):
    """A JSON value is not of the shape that was expected; the message says where."""


def to_jsonable(value: object) -> Any:
    """A dataclass, or what its fields hold, as what json.dumps takes. O(size)."""
    if is_dataclass(value) and not isinstance(value, type):
        types = _field_types(type(value))
        return {
            item.name: each if types[item.name][0] is object else to_jsonable(each)
            for item in fields(value)
            if not _is_default(item, each := getattr(value, item.name))
        }
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        pieces = split_pairs(value)
        return value if len(pieces) == 1 else {_PIECES: pieces}
    if isinstance(value, tuple):
        return list(value) if all(type(item) is int for item in value) else [to_jsonable(item) for item in value]
    return value


def from_jsonable(kind: type[T], value: object, place: str = "") -> T:
    """The dataclass that `to_jsonable` made `value` of.

    Raises:
        JsonShapeError: it was made of something else.
    """
    if not isinstance(value, dict):
        raise _unexpected(place, "an object", value)
    known = _field_types(cast(Any, kind))  # a type is hashable, whatever its metaclass lets mypy believe
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise JsonShapeError(f"{place or kind.__name__} has an unknown field {unknown[0]!r}")
    missing = [name for name, (_, is_required) in known.items() if is_required and name not in value]
    if missing:
        raise JsonShapeError(f"{place or kind.__name__} has no field {missing[0]!r}")
    parsed: dict[str, Any] = {}
    for name, item in value.items():
        where = f"{place}.{name}".lstrip(".")
        parsed[name] = _parse(known[name][0], item, where)
        _check_measure(name, parsed[name], where)
    return kind(**parsed)


def _check_measure(name: str, value: object, place: str) -> None:
    """Counts are never negative, and times are numbers that can be drawn."""
    if name.startswith("num_") and isinstance(value, int) and value < 0:
        raise _unexpected(place, "a count", value)
    if name.endswith(("_s", "_time")) and isinstance(value, float) and not math.isfinite(value):
        raise _unexpected(place, "a time in seconds", value)


def _is_default(item: Field[Any], value: object) -> bool:
    default = item.default_factory() if item.default_factory is not MISSING else item.default
    return type(default) is type(value) and default == value


@cache
def _field_types(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """Per field its type, and whether it must be given."""
    hints = get_type_hints(kind, vars(sys.modules[kind.__module__]))
    return {
        item.name: (hints[item.name], item.default is MISSING and item.default_factory is MISSING)
        for item in fields(kind)
    }


def _parse(kind: Any, value: object, place: str) -> Any:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _parse_union(get_args(kind), value, place)
    if origin is tuple:
        return _parse_tuple(get_args(kind), value, place)
    if origin is Literal:
        if value not in get_args(kind):
            raise _unexpected(place, f"one of {', '.join(map(repr, get_args(kind)))}", value)
        return value
    if kind is object:
        return value
    if origin is not None:
        assert issubclass(origin, Mapping), f"{place} has a type that has no JSON: {kind}"
        if not isinstance(value, dict):
            raise _unexpected(place, "an object", value)
        return value
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return from_jsonable(kind, value, place)
    return _parse_scalar(kind, value, place)


def _parse_scalar(kind: type, value: object, place: str) -> object:
    if kind is float:
        if isinstance(value, str) and value in ("inf", "-inf", "nan"):
            return float(value)
        if type(value) is float and math.isfinite(value):
            return value
        if type(value) is int and abs(value) < _INT_LIMIT:
            return float(value)
    elif kind is int:
        if type(value) is int and abs(value) < _INT_LIMIT:
            return value
    elif kind is str and isinstance(value, dict):
        return _joined_pieces(value, place)
    elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise _unexpected(place, kind.__name__, value)


def parse_text(value: object, place: str) -> str:
    """A text that `to_jsonable` made `value` of.

    Raises:
        JsonShapeError: it was made of something else.
    """
    return cast(str, _parse_scalar(str, value, place))


def _joined_pieces(value: Mapping[str, object], place: str) -> str:
    pieces = value.get(_PIECES)
    if len(value) != 1 or not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
        raise _unexpected(place, "str", value)
    return "".join(pieces)


def _parse_union(kinds: Sequence[Any], value: object, place: str) -> Any:
    if value is None and NoneType in kinds:
        return None
    left = [kind for kind in kinds if kind is not NoneType]
    if len(left) == 1:
        return _parse(left[0], value, place)
    for kind in left:
        try:
            return _parse(kind, value, place)
        except JsonShapeError:
            continue
    raise _unexpected(place, " or ".join(kind.__name__ for kind in left), value)


def _parse_tuple(kinds: Sequence[Any], value: object, place: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _unexpected(place, "a list", value)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        if kinds[0] is int and all(type(item) is int and abs(item) < _INT_LIMIT for item in value):
            return tuple(value)
        return tuple(_parse(kinds[0], item, f"{place}[{idx}]") for idx, item in enumerate(value))
    if len(value) != len(kinds):
        raise _unexpected(place, f"a list of {len(kinds)}", value)
    return tuple(
        _parse(kind, item, f"{place}[{idx}]") for idx, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _unexpected(place: str, wanted: str, value: object) -> JsonShapeError:
    shown = repr(value)  # it was read from JSON: no number in it is too long to be written
    shown = shown if len(shown) <= _MAX_SHOWN_CHARS else f"{shown[:_MAX_SHOWN_CHARS]}..."
    return JsonShapeError(f"{place or 'the value'} must be {wanted}, not {shown}")
