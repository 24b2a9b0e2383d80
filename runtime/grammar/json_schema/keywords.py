"""The keywords of JSON Schema draft 2020-12: which are enforced, which say nothing, which are refused and why."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from ..errors import UnsupportedSchemaError

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

IN_PLACE = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas"}
)
ENFORCED = IN_PLACE | {
    "type", "enum", "const", "format", "pattern", "minLength", "maxLength",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems",
    "properties", "patternProperties", "additionalProperties", "required", "propertyNames",
    "minProperties", "maxProperties", "unevaluatedProperties",
}  # fmt: skip
ANNOTATIONS = frozenset({
    "$schema", "$id", "$anchor", "$defs", "definitions", "$comment", "title", "description", "default", "examples",
    "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema",
    "discriminator", "example", "externalDocs", "xml",
})  # fmt: skip
_REFUSED = {
    "contains": "that an array contains an item of a kind cannot be followed token by token",
    "minContains": "that an array contains items of a kind cannot be followed token by token",
    "maxContains": "that an array contains items of a kind cannot be followed token by token",
    "$dynamicRef": "dynamic references are not resolved; use '$ref'",
    "$dynamicAnchor": "dynamic references are not resolved; use '$anchor'",
    "$recursiveRef": "dynamic references are not resolved; use '$ref'",
    "$recursiveAnchor": "dynamic references are not resolved; use '$anchor'",
    "$vocabulary": "vocabularies are not supported",
    "dependencies": "draft 2020-12 calls it 'dependentRequired' or 'dependentSchemas'",
    "nullable": 'it is not a keyword of JSON Schema; write "type": ["string", "null"]',
    "id": "draft 2020-12 calls it '$id'",
    "optional": "it is not a keyword; a property is optional unless 'required' lists it",
    "enumNames": "it is not a keyword; leave it out",
}
_SINCE_2019 = frozenset({"dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"})
_NEW_KEYWORDS = _SINCE_2019 | {"prefixItems"}
_OLD_DRAFTS = ("draft-03", "draft-04", "draft-05", "draft-06", "draft-07", "2019-09")


def check_keywords(schema: dict[str, Any], pointer: str) -> None:
    """Refuse a keyword that is unknown, misplaced or cannot be enforced.

    Raises:
        UnsupportedSchemaError: names the first such keyword.
    """
    for keyword, value in schema.items():
        if keyword == "nullable" and value is False:
            continue
        if keyword == "$id" and pointer:
            raise UnsupportedSchemaError(pointer, "$id", "only the root may have one; refer to it by '#/$defs/name'")
        if keyword in ENFORCED or keyword in ANNOTATIONS or keyword.startswith("x-"):
            continue
        if keyword in _REFUSED:
            raise UnsupportedSchemaError(pointer, keyword, _REFUSED[keyword])
        raise UnsupportedSchemaError(pointer, keyword, f"it is not a known keyword{_hint(keyword)}")


def check_draft(schema: dict[str, Any], root: object, pointer: str) -> None:
    """Refuse what means something else, or nothing, in the earlier draft that the root names.

    Raises:
        UnsupportedSchemaError: names the keyword.
    """
    if not is_old_draft(root):
        return
    assert isinstance(root, dict)
    for keyword in schema:
        if keyword in _NEW_KEYWORDS and not ("2019-09" in root["$schema"] and keyword in _SINCE_2019):
            raise UnsupportedSchemaError(pointer, keyword, f"draft {root['$schema']!r} does not know it")
    siblings = [keyword for keyword in schema if keyword != "$ref" and keyword not in ANNOTATIONS]
    if "$ref" in schema and siblings and "2019-09" not in root["$schema"]:
        raise UnsupportedSchemaError(
            pointer, siblings[0], f"draft {root['$schema']!r} ignores what stands beside '$ref'; put both into 'allOf'"
        )


def is_unconstrained(schema: object) -> bool:
    """Whether a schema allows any JSON at a glance: true, {} or annotations alone."""
    if isinstance(schema, dict):
        return all(keyword in ANNOTATIONS or keyword.startswith("x-") for keyword in schema)
    return schema is True


def is_old_draft(schema: object) -> bool:
    """Whether the root says that it is of an earlier draft, where `items` may be a list."""
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    return isinstance(uri, str) and any(draft in uri for draft in _OLD_DRAFTS)


def _hint(keyword: str) -> str:
    known = sorted(ENFORCED | ANNOTATIONS | _REFUSED.keys())
    lowered = {name.lower(): name for name in known}
    if keyword.lower() in lowered:
        return f"; did you mean {lowered[keyword.lower()]!r}?"
    close = get_close_matches(keyword, known, n=1, cutoff=0.75)
    return f"; did you mean {close[0]!r}?" if close else "; annotations of your own may begin with 'x-'"
