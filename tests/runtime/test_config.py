"""EngineConfig refuses what is not of an option's type, whichever option it is."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from typing import Any

import pytest
import torch

from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import InvalidConfigError

ODD_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 2.0, math.nan, math.inf, "", "no such", b"auto", "1"),
    *([], {}, set(), (), [[1]], ({},), ("1",), (1.0,), (None,), object(), int, torch.float16, 10**400, range(3)),
]
FIELDS = [field.name for field in dataclasses.fields(EngineConfig)]
HINTS = typing.get_type_hints(EngineConfig)
TURNED_INTO = {(name, "1"): 1 for name in ("kv_cache_memory", "host_cache_memory", "prefix_cache_dir_size")}
"""What is taken in another form."""
FREE_TEXTS = {"prefix_cache_dir"}
"""Any text will do; other options of type str are names out of a table."""


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of the annotated type. An int will do for a float; True is no number."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is typing.Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple:
        return isinstance(value, tuple | list) and all(fits(each, parts[0]) for each in value)
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    if hint is str:  # each is a name out of a table, which has none of these
        return False
    return isinstance(value, hint)


def refusal(name: str, value: object) -> str | None:
    """What is said of an option's value; None if it is taken."""
    try:
        EngineConfig(**{name: value})
    except InvalidConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", FIELDS)
def test_values_of_another_type_are_refused(name: str) -> None:
    """What fits may be out of range, and then it is refused in the same way."""
    is_free = name in FREE_TEXTS
    odd = [
        each for each in ODD_VALUES if not isinstance(each, str) or ((name, each) not in TURNED_INTO and not is_free)
    ]
    refusals = [(value, refusal(name, value)) for value in odd]
    assert [value for value, said in refusals if said is None and not fits(value, HINTS[name])] == []
    assert all(name in said for _, said in refusals if said is not None)


@pytest.mark.parametrize(("given", "held"), TURNED_INTO.items())
def test_values_in_another_form_are_turned_into_their_type(given: tuple[str, str], held: object) -> None:
    name, value = given
    assert dataclasses.asdict(EngineConfig(**{name: value}))[name] == held  # type: ignore[arg-type]
