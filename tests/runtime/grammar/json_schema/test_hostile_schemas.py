"""Schemas that are meant to break something: an error or a grammar, and soon."""

# ruff: noqa: E501

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ramet.runtime.grammar.errors import UnsupportedSchemaError
from ramet.runtime.grammar.json_schema import json_schema_lark


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + "true" + "}" * depth


def chain(length: int) -> dict[str, Any]:
    defs = {f"d{idx}": {"$ref": f"#/$defs/d{idx + 1}"} for idx in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{length}": {"type": "integer"}}}


REFUSED: list[tuple[str, str | dict[str, Any], str]] = [
    ("no JSON", "{", "not JSON"),
    ("not a schema", "[1]", "JSON object, true or false"),
    ("NaN", '{"type":"number","minimum":NaN}', "NaN is not JSON"),
    ("infinity", '{"type":"number","maximum":Infinity}', "Infinity is not JSON"),
    ("key twice", '{"type":"object","type":"string"}', "twice"),
    ("many digits", '{"const":' + "9" * 5000 + "}", "too large"),
    ("huge exponent", '{"minimum":1e999999999}', "too large"),
    ("half a pair", '{"const":"\\ud800"}', "surrogate"),
    ("half a pair in a name", '{"properties":{"\\udc00":{}},"type":"object"}', "surrogate"),
    ("nested 400 deep", nested(400), "deeper than"),
    ("nested 100000 deep", nested(100_000), "deeper than"),
    ("long chain of references", chain(500), "apply to one value"),
    ("enum of 20000", {"enum": list(range(20_000))}, "more than 10000"),
    ("too many values", {"examples": [0] * 60_000, "type": "integer"}, "values"),
    ("repeats of repeats", {"type": "string", "pattern": "((a{100}){100}){100}"}, "too large"),
    ("large multiple", {"type": "integer", "multipleOf": 123456789}, "multiples of so large"),
    ("too many alternatives", {"allOf": [{"anyOf": [{"required": [f"{a}{b}"]} for b in range(9)]} for a in range(9)]}, "too many"),
    ("2000 properties", {"type": "object", "properties": {f"p{idx}": True for idx in range(2000)}}, "1000 properties"),
    ("minItems", {"type": "array", "minItems": 10**12, "items": {"type": "null"}}, "not generated"),
    ("minLength", {"type": "string", "minLength": 10**30}, "not generated"),
    ("empty product", {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, "no value satisfies it"),
    ("schema of a wrong kind", {"type": "object", "properties": {"a": 3}}, "is not a schema"),
    ("keyword of a wrong kind", {"type": "object", "properties": []}, "must be an object"),
    ("required of a wrong kind", {"type": "object", "required": "a"}, "list of strings"),
    ("reference into data", {"$ref": "#/enum", "enum": [1]}, "not a schema"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_hostile_schemas_are_refused(schema: str | dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=message):
        json_schema_lark(schema if isinstance(schema, str) else json.dumps(schema))


ENFORCED: list[tuple[str, dict[str, Any], str, str]] = [
    ("maxLength", {"type": "string", "maxLength": 100_000}, '"abc"', "1"),
    ("maxItems", {"type": "array", "maxItems": 10**9, "items": {"type": "null"}}, "[null, null]", "[1]"),
    ("enum of 5000", {"enum": [f"name {idx}" for idx in range(5000)]}, '"name 4321"', '"name 5000"'),
    ("300 optional", {"type": "object", "properties": {f"p{idx}": {"type": "integer"} for idx in range(300)}, "additionalProperties": False},
     '{"p7": 1, "p250": 2}', '{"p250": 2, "p7": 1}'),
    ("exponential regex", {"type": "string", "pattern": "^(a|b)*a(a|b){20}$"}, '"a' + "b" * 20 + '"', '"b' + "b" * 20 + '"'),
    ("regex that makes others backtrack", {"enum": ["a" * 40, "a" * 40 + "b"], "pattern": "^(a+)+b$"}, '"' + "a" * 40 + 'b"', '"' + "a" * 40 + '"'),
    ("binary tree of references",
     {"$ref": "#/$defs/d0", "$defs": {**{f"d{idx}": {"type": "object", "properties": {"l": {"$ref": f"#/$defs/d{idx + 1}"}, "r": {"$ref": f"#/$defs/d{idx + 1}"}},
      "additionalProperties": False} for idx in range(50)}, "d50": {"type": "null"}}}, '{"l": {"r": {}}}', '{"l": 1}'),
]  # fmt: skip


@pytest.mark.parametrize("case", ENFORCED, ids=[case[0] for case in ENFORCED])
def test_large_schemas_are_enforced(
    case: tuple[str, dict[str, Any], str, str], compile_schema: Callable[..., Any]
) -> None:
    _, schema, valid, invalid = case
    compiled = compile_schema(schema)
    assert compiled.accepts(valid)
    assert not compiled.accepts(invalid)


@pytest.mark.parametrize(
    ("schema", "path", "message"),
    [
        ({"type": "object", "propertys": {}}, "", "did you mean 'properties'"),
        ({"type": "object", "properties": {"a/b": {"minlength": 3}}}, "/properties/a~1b", "did you mean 'minLength'"),
        ({"$defs": {"x": {"contains": {}}}, "type": "array", "items": {"$ref": "#/$defs/x"}}, "/$defs/x", "'contains'"),
        ({"anyOf": [{"type": "string"}, {"type": "string", "format": "colour"}]}, "/anyOf/1", "'colour'"),
        ({}, "", "it allows any JSON"),
    ],
)
def test_the_error_says_where_and_what_to_do(schema: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=message) as caught:
        json_schema_lark(json.dumps(schema))
    assert caught.value.path == path


@pytest.mark.parametrize("spelling", ['{"\\u0062": "x"}', '{"a": 1, "b" : 2}', '{"b": 01}', '{"b": -0}', '{"b":1}'])
def test_other_spellings_of_the_same_are_not_a_way_around(spelling: str, compile_schema: Callable[..., Any]) -> None:
    assert not compile_schema({"type": "object", "properties": {"b": {"type": "integer"}}}).accepts(spelling)


def test_numbers_and_spaces_have_an_end(compile_schema: Callable[..., Any]) -> None:
    numbers = compile_schema({"type": ["number", "array"]}, "flexible")
    assert numbers.accepts("123456789012345678")
    assert not numbers.accepts("1234567890123456789")
    assert numbers.accepts("0." + "1" * 15)
    assert not numbers.accepts("0." + "1" * 16)
    assert numbers.accepts("[" + " " * 8 + "]")
    assert not numbers.accepts("[" + " " * 17 + "]")
