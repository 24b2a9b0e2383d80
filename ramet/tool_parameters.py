"""What the arguments of a tool may be: its JSON schema, closed as far as that may be done."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

Schema = Mapping[str, Any]

_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("then", "else")
_OPENING = ("additionalProperties", "unevaluatedProperties", "patternProperties")
_BESIDE_REF = frozenset({"$schema", "$id", "$comment", "$defs", "definitions", "title", "description"})
"""What means nothing beside a `$ref`, also in the drafts where whatever else stands there is ignored."""


def closed_parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of a function's arguments: of an object, whose properties are those that the schema speaks of,
    wherever it does, in branches and behind references. No others may be given, unless the schema says itself which.

    It allows nothing that the schema as it was written does not, and its parts stand where they stood. What is no
    schema stays as it is: whoever enforces it refuses it.
    """
    given = function.get("parameters") or {"type": "object", "properties": {}}
    closed = copy.deepcopy(dict(given))
    if {"$ref", "$schema"} <= closed.keys() and _BESIDE_REF.issuperset(closed.keys() - {"$ref"}):
        closed["allOf"] = [{"$ref": closed.pop("$ref")}]
    kind = closed.setdefault("type", "object")
    if isinstance(kind, list) and "object" in kind:
        closed["type"] = "object"
    if closed["type"] == "object":
        _tell_branches(closed)
    if "additionalProperties" in closed or "unevaluatedProperties" in closed:
        return closed
    branches = list(_branches(closed, closed))[1:]
    if any(_is_open(branch) for branch in branches):
        return closed
    names = dict.fromkeys(name for schema in (closed, *branches) for name in _names(schema))
    properties = closed.get("properties", {})
    if isinstance(properties, dict) and (names or not branches):
        closed["properties"] = {**properties, **{name: True for name in names if name not in properties}}
        closed["additionalProperties"] = False
    return closed


def _tell_branches(schema: dict[str, Any]) -> None:
    """Write into branches, which are seen one by one, that they too are of objects. It says nothing new."""
    for keyword in _LISTS:
        branches = schema.get(keyword)
        for branch in branches if isinstance(branches, list) else ():
            if isinstance(branch, dict) and not {"type", "$ref", "const", "enum"} & branch.keys():
                branch["type"] = "object"
                _tell_branches(branch)


def _branches(schema: Any, root: Schema) -> Iterator[Schema]:
    """It, and all schemas that say something of the same value."""
    pending, seen = deque([schema]), set()
    while pending:
        branch = pending.popleft()
        if not isinstance(branch, Mapping) or id(branch) in seen:
            continue
        seen.add(id(branch))
        yield branch
        for keyword in _LISTS:
            pending += branch[keyword] if isinstance(branch.get(keyword), list) else ()
        pending += [branch[keyword] for keyword in _SINGLE if keyword in branch]
        dependent = branch.get("dependentSchemas")
        pending += dependent.values() if isinstance(dependent, Mapping) else ()
        if isinstance(branch.get("$ref"), str):
            pending.append(_target(branch["$ref"], root))


def _target(reference: str, root: Schema) -> Any:
    """What a reference leads to; a schema that allows anything where that cannot be seen."""
    found: Any = root
    if not reference.startswith("#/"):
        return root if reference == "#" else {"additionalProperties": True}
    for step in unquote(reference[2:]).split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return {"additionalProperties": True} if found is None else found


def _is_open(schema: Schema) -> bool:
    return any(schema.get(keyword, False) is not False for keyword in _OPENING)


def _names(schema: Schema) -> list[str]:
    properties, required = schema.get("properties"), schema.get("required")
    found = list(properties) if isinstance(properties, Mapping) else []
    return found + [name for name in (required if isinstance(required, list) else ()) if isinstance(name, str)]
