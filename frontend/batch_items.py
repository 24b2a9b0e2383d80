"""The items of a batch: per run, the arguments of the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .errors import InvalidProgramError

Item = Mapping[str, Any] | tuple[Any, ...]
"""Arguments by name, or in order."""


def listed(items: Iterable[Item]) -> list[Item]:
    """
    Raises:
        InvalidProgramError: it is one item instead of many, or no iterable.
    """
    if isinstance(items, Mapping | str) or not isinstance(items, Iterable):
        raise InvalidProgramError(f"run_batch takes a list of dicts or tuples, one per run, not {type(items).__name__}")
    return list(items)


def checked_item(idx: int, item: Item) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The positional arguments and those by name.

    Raises:
        InvalidProgramError: it is neither a dict nor a tuple.
    """
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, tuple):
        return item, {}
    raise InvalidProgramError(
        f"item {idx} of run_batch is {item!r}; give a dict of the program's arguments or a tuple of them, "
        "such as {'question': ...}"
    )
