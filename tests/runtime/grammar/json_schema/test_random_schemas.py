"""Random schemas: whatever is generated under one satisfies it, by another implementation's judgement."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ramet.runtime.grammar.errors import UnsupportedSchemaError

NAMES = st.sampled_from(["a", "b", "ab", "a b", 'q"'])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-20, 20), st.sampled_from(["", "a", "ab", "b c", "\n"]))
PATTERNS = st.sampled_from(["^a", "b$", "^[ab]*$", "a|b", "^[0-9]{2}$", "^a?b?$"])


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": draw(st.sampled_from(["integer", "number"]))}
    bounds = st.one_of(st.integers(-50, 50), st.integers(-500, 500).map(lambda value: value / 10))
    for keyword in draw(st.sets(st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]))):
        schema[keyword] = draw(bounds)
    if draw(st.booleans()):
        schema["multipleOf"] = draw(st.sampled_from([1, 2, 3, 7, 10, 0.5, 0.1, 0.25]))
    return schema


@st.composite
def texts(draw: st.DrawFn) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if draw(st.booleans()):
        schema["pattern"] = draw(PATTERNS)
    for keyword in draw(st.sets(st.sampled_from(["minLength", "maxLength"]))):
        schema[keyword] = draw(st.integers(0, 4))
    return schema


@st.composite
def objects(draw: st.DrawFn, children: st.SearchStrategy[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": draw(st.dictionaries(NAMES, children, max_size=3))}
    if draw(st.booleans()):
        schema["required"] = draw(st.lists(NAMES, unique=True, max_size=2))
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.one_of(st.just(False), children))
    if draw(st.booleans()):
        schema["patternProperties"] = draw(st.dictionaries(PATTERNS, children, max_size=2))
    for keyword in draw(st.sets(st.sampled_from(["minProperties", "maxProperties"]))):
        schema[keyword] = draw(st.integers(0, 3))
    return schema


@st.composite
def arrays(draw: st.DrawFn, children: st.SearchStrategy[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "items": draw(st.one_of(st.just(False), children))}
    if draw(st.booleans()):
        schema["prefixItems"] = draw(st.lists(children, min_size=1, max_size=2))
    for keyword in draw(st.sets(st.sampled_from(["minItems", "maxItems"]))):
        schema[keyword] = draw(st.integers(0, 3))
    return schema


def combined(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(children, min_size=1, max_size=3)
    return st.one_of(
        objects(children),
        arrays(children),
        st.builds(lambda kind, branches: {kind: branches}, st.sampled_from(["anyOf", "allOf", "oneOf"]), lists),
        st.builds(lambda schema: {"not": schema}, children),
        st.builds(lambda first, second: {**first, **second}, children, children),
        st.builds(lambda a, b, c: {"if": a, "then": b, "else": c}, children, children, children),
    )


LEAVES = st.one_of(
    numbers(),
    texts(),
    st.builds(lambda values: {"enum": values}, st.lists(SCALARS, min_size=1, max_size=3)),
    st.just({"type": ["null", "boolean"]}),
)
SCHEMAS = st.recursive(LEAVES, combined, max_leaves=6)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, seed=st.integers(0, 1000))
def test_whatever_is_generated_is_valid(schema: Any, seed: int, compile_schema: Callable[..., Any]) -> None:
    try:
        compiled = compile_schema(schema)
    except UnsupportedSchemaError:
        assume(False)
        return
    text = compiled.random_text(seed, max_tokens=120)
    assume(text is not None)
    assert text is not None
    # Decimals on both sides: a schema's 0.1 is a tenth.
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    errors = list(Draft202012Validator(exact).iter_errors(json.loads(text, parse_float=Decimal)))
    assert not errors, (text, schema)
