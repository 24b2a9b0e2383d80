"""The keywords that speak of one type of value: `minimum`, `pattern`, `items`, `properties` and the like."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from ..errors import UnsupportedSchemaError
from .constraints import (
    ANYTHING,
    ArrayPart,
    Arrays,
    Bools,
    Conjunction,
    Constraint,
    Null,
    Numbers,
    ObjectPart,
    Objects,
    Place,
    Strings,
    checked_arrays,
    checked_numbers,
    checked_objects,
    checked_strings,
)
from .document import SchemaDocument, child_pointer
from .ecma_parser import parse_search_pattern
from .ecma_regex import RegexRefusedError
from .formats import format_pattern
from .keywords import IN_PLACE, TYPES, is_old_draft, is_unconstrained
from .text_pattern import TextPattern

MAX_COUNT = 10**9


def typed_constraints(schema: dict[str, Any], pointer: str, document: SchemaDocument) -> list[Constraint]:
    """One constraint for each type that `type` allows.

    Raises:
        UnsupportedSchemaError: a keyword has a value it cannot have, or its type has no values left.
    """
    types = _types(schema, pointer)
    found: list[Constraint] = []
    conflict: tuple[str, str] | None = None
    for kind in types:
        constraint: Constraint | None
        if kind == "null":
            constraint = Null()
        elif kind == "boolean":
            constraint = Bools(frozenset({False, True}))
        elif kind in {"integer", "number"}:
            constraint = checked_numbers(_numbers(schema, pointer, kind == "integer"))
            conflict = conflict or ("minimum", "no number satisfies its bounds")
        elif kind == "string":
            constraint = checked_strings(_strings(schema, pointer))
            conflict = conflict or ("minLength", "no string satisfies its lengths and its pattern")
        elif kind == "array":
            constraint = checked_arrays(_arrays(schema, pointer, document))
            conflict = conflict or ("minItems", "it is more than 'maxItems'")
        else:
            constraint = checked_objects(_objects(schema, pointer))
            conflict = conflict or ("maxProperties", "it is less than 'minProperties' or the number of 'required' ones")
        if constraint is not None:
            found.append(constraint)
    if not found:
        assert conflict is not None
        keyword = next((own for own in _CONFLICTS[conflict[0]] if own in schema), conflict[0])
        raise UnsupportedSchemaError(pointer, keyword, conflict[1])
    return found


# Which keyword to name when a type has no values left.
_CONFLICTS = {
    "minimum": ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"),
    "minLength": ("minLength", "maxLength", "pattern", "format"),
    "minItems": ("minItems",),
    "maxProperties": ("maxProperties",),
}


def _types(schema: dict[str, Any], pointer: str) -> list[str]:
    if "type" not in schema:
        return [kind for kind in TYPES if kind != "integer"]
    given = schema["type"]
    types = [given] if isinstance(given, str) else given
    if not isinstance(types, list) or not types:
        raise UnsupportedSchemaError(pointer, "type", "it must be a type or a list of types")
    for kind in types:
        if kind not in TYPES:
            raise UnsupportedSchemaError(pointer, "type", f"{kind!r} is not one of {', '.join(TYPES)}")
    return [kind for kind in dict.fromkeys(types) if kind != "integer" or "number" not in types]


def _numbers(schema: dict[str, Any], pointer: str, is_integer: bool) -> Numbers:
    low, high = _number(schema, "minimum", pointer), _number(schema, "maximum", pointer)
    above, below = _number(schema, "exclusiveMinimum", pointer), _number(schema, "exclusiveMaximum", pointer)
    is_low_excluded = above is not None and (low is None or above >= low)
    is_high_excluded = below is not None and (high is None or below <= high)
    divisor = _number(schema, "multipleOf", pointer)
    if divisor is not None and divisor <= 0:
        raise UnsupportedSchemaError(pointer, "multipleOf", "it must be greater than 0")
    return Numbers(
        is_integer,
        above if is_low_excluded else low,
        below if is_high_excluded else high,
        is_low_excluded,
        is_high_excluded,
        () if divisor is None else (divisor,),
    )


def _strings(schema: dict[str, Any], pointer: str) -> Strings:
    patterns: tuple[TextPattern, ...] = ()
    if "pattern" in schema:
        patterns += (read_pattern(schema["pattern"], "pattern", pointer),)
    if "format" in schema:
        patterns += (format_pattern(schema["format"], pointer),)
    return Strings(_count(schema, "minLength", pointer) or 0, _count(schema, "maxLength", pointer), patterns)


def _arrays(schema: dict[str, Any], pointer: str, document: SchemaDocument) -> Arrays:
    min_items, max_items = _count(schema, "minItems", pointer) or 0, _count(schema, "maxItems", pointer)
    unique = schema.get("uniqueItems", False)
    if not isinstance(unique, bool):
        raise UnsupportedSchemaError(pointer, "uniqueItems", "it must be true or false")
    prefix_keyword, rest_keyword = "prefixItems", "items"
    if isinstance(schema.get("items"), list) and is_old_draft(document.root):
        prefix_keyword, rest_keyword = "items", "additionalItems"
    elif isinstance(schema.get("items"), list):
        raise UnsupportedSchemaError(pointer, "items", "a list of schemas is written 'prefixItems' since draft 2020-12")
    prefix: tuple[Conjunction, ...] = ()
    if prefix_keyword in schema:
        prefix = tuple((Place(place),) for place in schema_list(schema, prefix_keyword, pointer))
    if rest_keyword not in schema and "unevaluatedItems" in schema:
        rest_keyword = _unevaluated("unevaluatedItems", schema, pointer)
    rest = _child(schema, rest_keyword, pointer)
    part = ArrayPart(prefix, rest)
    has_many = (max_items is None or max_items > 1) and not (schema.get(rest_keyword) is False and len(prefix) <= 1)
    if unique and has_many:
        raise UnsupportedSchemaError(
            pointer, "uniqueItems", "that items differ cannot be followed token by token, unless 'maxItems' is 1"
        )
    return Arrays((part,) if prefix or rest else (), min_items, max_items)


def _objects(schema: dict[str, Any], pointer: str) -> Objects:
    properties = tuple(
        (name, _child(schema["properties"], name, child_pointer(pointer, "properties")))
        for name in _names(schema, "properties", pointer)
    )
    patterns = tuple(
        (
            read_pattern(source, "patternProperties", pointer),
            _child(schema["patternProperties"], source, child_pointer(pointer, "patternProperties")),
        )
        for source in _names(schema, "patternProperties", pointer)
    )
    additional_keyword = "additionalProperties"
    if additional_keyword not in schema and "unevaluatedProperties" in schema:
        additional_keyword = _unevaluated("unevaluatedProperties", schema, pointer)
    additional = _child(schema, additional_keyword, pointer)
    part = ObjectPart(properties, patterns, additional)
    required = string_list(schema.get("required", []), "required", pointer)
    return Objects(
        (part,) if properties or patterns or additional else (),
        tuple(dict.fromkeys(required)),
        _count(schema, "minProperties", pointer) or 0,
        _count(schema, "maxProperties", pointer),
        _child(schema, "propertyNames", pointer),
    )


def _unevaluated(keyword: str, schema: dict[str, Any], pointer: str) -> str:
    """With nothing else that evaluates items or properties it is the same as the plain keyword."""
    if is_unconstrained(schema[keyword]):
        return keyword
    applied = sorted(IN_PLACE.intersection(schema) - {"dependentRequired", "not"})
    if applied:
        raise UnsupportedSchemaError(pointer, keyword, f"it cannot be enforced beside {applied[0]!r}")
    return keyword


def read_pattern(source: Any, keyword: str, pointer: str) -> TextPattern:
    if not isinstance(source, str):
        raise UnsupportedSchemaError(pointer, keyword, "it must be a string")
    try:
        return parse_search_pattern(source)
    except RegexRefusedError as error:
        raise UnsupportedSchemaError(pointer, keyword, str(error)) from error


def schema_list(schema: dict[str, Any], keyword: str, pointer: str) -> list[str]:
    """The places of the schemas in a list."""
    value = schema[keyword]
    if not isinstance(value, list) or not value:
        raise UnsupportedSchemaError(pointer, keyword, "it must be a list of at least one schema")
    return [child_pointer(pointer, keyword, idx) for idx in range(len(value))]


def string_list(value: Any, keyword: str, pointer: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UnsupportedSchemaError(pointer, keyword, "it must be a list of strings")
    return value


def _names(schema: dict[str, Any], keyword: str, pointer: str) -> list[str]:
    value = schema.get(keyword, {})
    if not isinstance(value, dict):
        raise UnsupportedSchemaError(pointer, keyword, "it must be an object")
    return list(value)


def _child(container: dict[str, Any], key: str, pointer: str) -> Conjunction:
    if key not in container or (is_unconstrained(container[key]) and not _has_id(container[key])):
        return ANYTHING
    return (Place(child_pointer(pointer, key)),)


def _count(schema: dict[str, Any], keyword: str, pointer: str) -> int | None:
    value = _number(schema, keyword, pointer)
    if value is None:
        return None
    if value < 0 or value != value.to_integral_value():
        raise UnsupportedSchemaError(pointer, keyword, "it must be a whole number, 0 or more")
    return int(min(value, Decimal(MAX_COUNT)))


def _number(schema: dict[str, Any], keyword: str, pointer: str) -> Decimal | None:
    value = schema.get(keyword)
    if keyword not in schema:
        return None
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        hint = "; that is draft 4, since then it is the bound itself" if keyword.startswith("exclusive") else ""
        raise UnsupportedSchemaError(pointer, keyword, f"it must be a number{hint}")
    return Decimal(value)


def _has_id(schema: Any) -> bool:
    return isinstance(schema, dict) and "$id" in schema
