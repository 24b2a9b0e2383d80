"""plain_data: what JSON can hold of a Python value, or a clear no."""

from __future__ import annotations

import datetime
import enum
import json
from dataclasses import dataclass
from pathlib import Path

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.frontend.journal.plain_data import NotPlainDataError, canonical_json, plain_data


class Colour(enum.Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    when: datetime.date
    names: list[str]


@dataclass
class Point:
    x: int
    y: float


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=30, deadline=None)
@given(JSON)
def test_what_is_plain_stays_as_it_is(value: object) -> None:
    plain = plain_data(value)
    assert plain == value
    assert json.loads(canonical_json(plain)) == value


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2,)), [1, [2]]),
        ({"b", "a"}, ["a", "b"]),
        ({1: "x", None: "y", (1, 2): "z"}, {"1": "x", "null": "y", "[1,2]": "z"}),
        (Colour.RED, "red"),
        (Point(1, 2.5), {"x": 1, "y": 2.5}),
        (Model(when=datetime.date(2024, 1, 2), names=["a"]), {"when": "2024-01-02", "names": ["a"]}),
        (Path("a/b"), "a/b"),
        (datetime.datetime(2024, 1, 2, 3), "2024-01-02T03:00:00"),
        (LookupError("mine"), "LookupError: mine"),
        (json.loads, "json.loads"),
        (Point, f"{Point.__module__}.Point"),
    ],
)
def test_what_has_a_plain_form_takes_it(value: object, plain: object) -> None:
    assert plain_data(value) == plain


def test_what_has_none_is_refused_with_its_place() -> None:
    with pytest.raises(NotPlainDataError, match=r"the value\['a'\]\[1\] is a object, for which JSON has no form"):
        plain_data({"a": [1, object()]})
    with pytest.raises(NotPlainDataError, match="has two keys that are '1' in JSON"):
        plain_data({1: 2, "1": 3})
    nested: list[object] = []
    nested.append(nested)
    with pytest.raises(NotPlainDataError, match="nested more than 64 deep"):
        plain_data(nested)
