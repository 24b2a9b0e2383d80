"""Python values as what JSON can hold."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import inspect
import json
import os
from collections.abc import Mapping, Set
from typing import Any, Protocol, runtime_checkable

from ..errors import described

MAX_DEPTH = 64


class NotPlainDataError(TypeError):
    """JSON has no form for a value; the message says which and where it is."""


@runtime_checkable
class ModelObject(Protocol):
    """What pydantic's models can do."""

    def model_dump(self, *, mode: str) -> Any: ...


def plain_data(value: object, place: str = "the value") -> Any:
    """The value in lists, dicts with string keys, strings, numbers, booleans and None.

    Tuples and sets become lists, model objects and dataclasses dicts, enum members their values, dates, paths and
    exceptions strings, functions and classes their names.

    Raises:
        NotPlainDataError: it holds something else.
    """
    return _plain(value, place, 0)


def canonical_json(value: object) -> str:
    """Plain data as the one text that stands for it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _plain(value: object, place: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise NotPlainDataError(f"{place} is nested more than {MAX_DEPTH} deep")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        return _plain_mapping(value, place, depth)
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}[{idx}]", depth + 1) for idx, item in enumerate(value)]
    if isinstance(value, Set):
        return sorted((_plain(item, f"an item of {place}", depth + 1) for item in value), key=canonical_json)
    if isinstance(value, enum.Enum):
        return _plain(value.value, place, depth + 1)
    if isinstance(value, type) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, ModelObject):
        return _plain(value.model_dump(mode="json"), place, depth + 1)
    if dataclasses.is_dataclass(value):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return _plain_mapping(fields, place, depth)
    return _plain_scalar(value, place)


def _plain_mapping(value: Mapping[Any, Any], place: str, depth: int) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        name = key if isinstance(key, str) else canonical_json(_plain(key, f"a key of {place}", depth + 1))
        if name in plain:
            raise NotPlainDataError(f"{place} has two keys that are {name!r} in JSON")
        plain[name] = _plain(item, f"{place}[{key!r}]", depth + 1)
    return plain


def _plain_scalar(value: object, place: str) -> bool | int | float | str:
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, BaseException):
        return described(value)
    raise NotPlainDataError(f"{place} is a {type(value).__name__}, for which JSON has no form")
