"""Schemas of tools are closed where that takes nothing away that they speak of."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.tool_parameters import closed_parameters
from ramet.tool_prompts import call_schema

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
DEFS = {"$defs": {"a/b": A}}


def closed(schema: object) -> dict[str, Any]:
    return closed_parameters({"name": "f", "parameters": schema})


def allows(schema: dict[str, Any], value: object) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        (None, [{}], [{"a": 1}]),
        ({}, [{}], [{"a": 1}]),
        (A, [{"a": 1}], [{}, {"a": 1, "z": 1}]),
        ({"required": ["z"]}, [{"z": 1}], [{}, {"z": 1, "a": 1}]),
        ({"anyOf": [A, B]}, [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}], [{}, {"a": 1, "z": 1}]),
        ({"oneOf": [A, B]}, [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}, {"a": 1, "z": 1}]),
        ({"allOf": [A, B]}, [{"a": 1, "b": 1}], [{"a": 1}, {"a": 1, "b": 1, "z": 1}]),
        ({"anyOf": [A, {"type": "null"}]}, [{"a": 1}], [None, {"a": 1, "z": 1}]),
        ({"$ref": "#/$defs/a~1b", **DEFS}, [{"a": 1}], [{}, {"a": 1, "z": 1}]),
        ({"anyOf": [{"$ref": "#/$defs/a~1b"}, B], **DEFS}, [{"a": 1}, {"b": 1}], [{}, {"a": 1, "z": 1}]),
        ({**A, "if": A, "then": {"required": ["c"]}}, [{"a": 1, "c": 1}], [{"a": 1}, {"a": 1, "c": 1, "z": 1}]),
        ({"type": ["object", "null"], "properties": {"a": {}}}, [{"a": 1}, {}], [None, {"z": 1}]),
    ],
)
def test_no_other_arguments_than_those_spoken_of(schema: object, allowed: list[Any], refused: list[Any]) -> None:
    made = closed(schema)
    assert [value for value in allowed if not allows(made, value)] == []
    assert [value for value in refused if allows(made, value)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {**A, "additionalProperties": {"type": "integer"}},
        {"anyOf": [A, {"additionalProperties": {"type": "integer"}}]},
        {"allOf": [A, {"patternProperties": {"^z": {}}}]},
        {"anyOf": [{"type": "object"}]},
        {"anyOf": [A], "unevaluatedProperties": True},
        {"anyOf": [A, {"$ref": "https://example.com/schema"}]},
    ],
)
def test_what_a_schema_opens_itself_stays_open(schema: dict[str, Any]) -> None:
    assert closed(schema).get("additionalProperties") == schema.get("additionalProperties")


BRANCHES = st.sampled_from([A, B, True, {"required": ["a"]}, {"properties": {"b": {"const": 1}}}, {"not": A}])
SCHEMAS = st.dictionaries(st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(BRANCHES, min_size=1, max_size=3))
VALUES = st.dictionaries(st.sampled_from("abz"), st.sampled_from([1, "x"]))


@given(SCHEMAS, st.booleans(), VALUES)
def test_a_closed_schema_allows_what_the_open_one_does_without_other_names(
    schema: dict[str, Any], is_typed: bool, value: dict[str, Any]
) -> None:
    given_schema = {**schema, **({"type": "object", "properties": {"a": {}}} if is_typed else {})}
    before = json.dumps(given_schema)
    made = closed(given_schema)
    assert json.dumps(given_schema) == before
    assert allows(made, value) <= allows(given_schema, value)
    if "z" not in value and set("ab") <= made.get("properties", {}).keys():
        assert allows(made, value) == allows(given_schema, value)


def test_a_call_of_one_of_several_keeps_their_references() -> None:
    functions = [{"name": "f", "parameters": {"$ref": "#/$defs/a~1b", **DEFS}}, {"name": "g", "parameters": B}]
    schema = call_schema(functions, "arguments")
    assert allows(schema, {"name": "f", "arguments": {"a": 1}})
    assert allows(schema, {"name": "g", "arguments": {"b": 1}})
    assert not allows(schema, {"name": "f", "arguments": {"b": 1}})
    assert not allows(schema, {"name": "f", "arguments": {"a": 1, "z": 1}})
