"""A constraint as plain data: what is taken, what is refused, and that a model's objects are closed."""

from __future__ import annotations

import json

import pydantic
import pytest

from ramet.grammar_spec import InvalidGrammarSpecError, choices_tuple, schema_text


class Inner(pydantic.BaseModel):
    properties: dict[str, int]


class Open(pydantic.BaseModel, extra="allow"):
    name: str


class Outer(pydantic.BaseModel):
    inner: Inner
    others: list[Inner | None]
    more: Open


def test_the_objects_of_a_model_have_no_other_properties():
    schema = json.loads(schema_text(Outer))
    assert schema["additionalProperties"] is False
    inner = schema["$defs"]["Inner"]
    assert inner["additionalProperties"] is False
    assert inner["properties"]["properties"] == Inner.model_json_schema()["properties"]["properties"]
    assert schema["$defs"]["Open"]["additionalProperties"] is True


def test_a_schema_of_ones_own_is_left_alone():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert schema_text(schema) == json.dumps(schema)
    assert schema_text(json.dumps(schema)) == json.dumps(schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be a dict, JSON text or a pydantic model class"),
        (Open(name="a"), "Open"),
        (list[int], r"list\[int\]"),
        ({"const": float("nan")}, "cannot be written as JSON"),
        ({"const": object()}, "cannot be written as JSON"),
    ],
    ids=str,
)
def test_what_is_no_schema_is_refused(schema, message):
    with pytest.raises(InvalidGrammarSpecError, match=message):
        schema_text(schema)


@pytest.mark.parametrize("choices", ["ab", 5, [], ["a", ""], ["a", 1], ["a", "b", "a"]], ids=str)
def test_what_are_no_choices_is_refused(choices):
    with pytest.raises(InvalidGrammarSpecError):
        choices_tuple(choices)


def test_choices_may_come_from_an_iterator():
    assert choices_tuple(iter(["b", "a"])) == ("b", "a")
