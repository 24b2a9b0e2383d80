"""The items of a batch: per run, the arguments of the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .errors import InvalidProgramError

Item = Mapping[str, Any] | tuple[Any, ...]
"""Arguments by name, or in order."""


Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The positional ones and those by name."""


def checked_items(items: Iterable[Item]) -> list[Arguments]:
    """
    Raises:
        InvalidProgramError: it is one item instead of many, or no iterable, or an item is neither a dict nor a tuple.
    """
    if isinstance(items, Mapping | str) or not isinstance(items, Iterable):
        raise InvalidProgramError(f"run_batch takes a list of dicts or tuples, one per run, not {type(items).__name__}")
    return [_checked_item(idx, item) for idx, item in enumerate(items)]


def _checked_item(idx: int, item: object) -> Arguments:
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, tuple):
        return item, {}
    raise InvalidProgramError(
        f"item {idx} of run_batch is {item!r}; give a dict of the program's arguments or a tuple of them, "
        "such as {'question': ...}"
    )
