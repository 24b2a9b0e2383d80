"""jsonable makes something of whatever it is given, and JSON takes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pytest

from ramet.frontend.trace.plain_values import MAX_ITEMS, MAX_TEXT_CHARS, jsonable


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


class BrokenMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError

    def __len__(self) -> int:
        return 3


class BrokenList(list[int]):
    def __iter__(self) -> Iterator[int]:
        raise OSError


class EndlessList(list[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(count())


def in_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([10**5000], ["<int of 16,610 bits>"]),
        ({"a": -(10**5000)}, {"a": "<int of 16,610 bits>"}),
        (Broken(), "<Broken whose repr raised RuntimeError>"),
        ({Broken(): 1}, {"<Broken whose repr raised RuntimeError>": 1}),
        ([1, BrokenMapping()], [1, "<BrokenMapping that raised RuntimeError>"]),
        (BrokenList([1]), "<BrokenList that raised OSError>"),
        ("\ud83d\ude00\ud83d", "\U0001f600\ud83d"),
        (set(range(MAX_ITEMS + 1)), "<set of 10,001 items>"),
        ("x" * (MAX_TEXT_CHARS + 1), "x" * MAX_TEXT_CHARS + "... (100,001 characters in all)"),
        (list(range(MAX_ITEMS + 5)), [*range(MAX_ITEMS), "... (cut: the whole list has 10,005 items)"]),
    ],
)
def test_what_becomes_of_a_value(value: object, expected: object) -> None:
    assert jsonable(value) == expected


@pytest.mark.parametrize("value", [in_itself(), nested(100_000), EndlessList(), b"x" * 10**7, float("nan"), object])
def test_json_takes_it(value: object) -> None:
    assert len(json.dumps(jsonable(value), allow_nan=False)) < 200_000
