"""Expansion: from places in a schema document to the constraints on each type of value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import combinations
from typing import Any

from ..errors import UnsupportedSchemaError
from .constraints import (
    ALL_TYPES,
    ANYTHING,
    NEVER,
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
    TooManyAlternativesError,
    meet_lists,
    unique,
)
from .disjoint import are_disjoint
from .document import SchemaDocument, child_pointer
from .keywords import check_draft, check_keywords
from .negation import CannotNegateError, negated
from .typed_keywords import schema_list, string_list, typed_constraints

_MAX_IN_PLACE = 60
MAX_ENUM_VALUES = 10_000

Keyword = Callable[["Expander", dict[str, Any], str, int], Sequence[Constraint]]


class Expander:
    """Expands places of one document. What was expanded is kept."""

    def __init__(self, document: SchemaDocument) -> None:
        self.document = document
        self._expanded: dict[Conjunction, list[Constraint]] = {}
        self._schemas: dict[str, list[Constraint]] = {}
        self._in_progress: set[str] = set()

    def expand(self, conjunction: Conjunction) -> list[Constraint]:
        """The alternatives that satisfy all of these places; none where they contradict each other.

        Raises:
            UnsupportedSchemaError: a keyword cannot be enforced, or a schema contradicts itself.
        """
        if conjunction not in self._expanded:
            found: list[Constraint] = list(ALL_TYPES)
            for place in conjunction:
                try:
                    found = meet_lists(found, self._expand_place(place))
                except TooManyAlternativesError as error:
                    raise UnsupportedSchemaError(place.pointer, None, _TOO_MANY) from error
            self._expanded[conjunction] = found
        return self._expanded[conjunction]

    def _expand_place(self, place: Place) -> Sequence[Constraint]:
        if place in NEVER:
            return []
        if place.kind == "value":
            return value_constraints(self.document.at(place.pointer), place.pointer)
        found = self.schema(place.pointer, 0)
        if place.kind == "schema":
            return found
        try:
            return negated(found)
        except CannotNegateError as error:
            raise UnsupportedSchemaError(
                place.pointer, "not", f"the opposite of this is needed, but {error}"
            ) from error

    def schema(self, pointer: str, depth: int) -> list[Constraint]:
        """The alternatives of the schema at a place. `depth` counts the schemas that apply to the same value."""
        if pointer in self._schemas:
            return self._schemas[pointer]
        if pointer in self._in_progress:
            raise UnsupportedSchemaError(pointer, "$ref", "it refers to itself without anything in between")
        if depth > _MAX_IN_PLACE:
            raise UnsupportedSchemaError(pointer, "$ref", f"more than {_MAX_IN_PLACE} schemas apply to one value")
        self._in_progress.add(pointer)
        self._schemas[pointer] = self._read_schema(pointer, depth)
        self._in_progress.remove(pointer)
        return self._schemas[pointer]

    def _read_schema(self, pointer: str, depth: int) -> list[Constraint]:
        schema = self.document.at(pointer)
        if isinstance(schema, bool):
            return list(ALL_TYPES) if schema else []
        if not isinstance(schema, dict):
            raise UnsupportedSchemaError(
                pointer, None, f"{schema!r} is not a schema: it must be an object or a boolean"
            )
        check_keywords(schema, pointer)
        check_draft(schema, self.document.root, pointer)
        found = typed_constraints(schema, pointer, self.document)
        for keyword, read in _IN_PLACE.items():
            if keyword not in schema:
                continue
            try:
                allowed = read(self, schema, pointer, depth + 1)
                met = meet_lists(found, allowed)
            except CannotNegateError as error:
                raise UnsupportedSchemaError(pointer, keyword, str(error)) from error
            except TooManyAlternativesError as error:
                raise UnsupportedSchemaError(pointer, keyword, _TOO_MANY) from error
            if found and allowed and not met:
                raise UnsupportedSchemaError(
                    pointer, keyword, "nothing satisfies it together with the other keywords here"
                )
            found = met
        return found

    # -- keywords that apply other schemas to the same value ---------------------------------------------------------

    def _ref(self, schema: dict[str, Any], pointer: str, depth: int) -> Sequence[Constraint]:
        if not isinstance(schema["$ref"], str):
            raise UnsupportedSchemaError(pointer, "$ref", "it must be a string")
        return self.schema(self.document.resolve(schema["$ref"], pointer), depth)

    def _const(self, schema: dict[str, Any], pointer: str, depth: int) -> Sequence[Constraint]:
        return value_constraints(schema["const"], child_pointer(pointer, "const"))

    def _enum(self, schema: dict[str, Any], pointer: str, depth: int) -> Sequence[Constraint]:
        values = schema["enum"]
        if not isinstance(values, list) or not values:
            raise UnsupportedSchemaError(pointer, "enum", "it must be a list of at least one value")
        if len(values) > MAX_ENUM_VALUES:
            raise UnsupportedSchemaError(pointer, "enum", f"it has more than {MAX_ENUM_VALUES} values")
        found: list[Constraint] = []
        for idx, value in enumerate(values):
            if not isinstance(value, str) and not _is_number(value):
                found += value_constraints(value, child_pointer(pointer, "enum", idx))
        strings = tuple(dict.fromkeys(value for value in values if isinstance(value, str)))
        numbers = tuple(dict.fromkeys(Decimal(value) for value in values if _is_number(value)))
        found += [Strings(values=strings)] if strings else []
        return found + ([Numbers(values=numbers)] if numbers else [])

    def _all_of(self, schema: dict[str, Any], pointer: str, depth: int) -> Sequence[Constraint]:
        found: list[Constraint] = list(ALL_TYPES)
        for place in schema_list(schema, "allOf", pointer):
            found = meet_lists(found, self.schema(place, depth))
        return found

    def _any_of(self, schema: dict[str, Any], pointer: str, depth: int) -> Sequence[Constraint]:
        branches = [self.schema(place, depth) for place in schema_list(schema, "anyOf", pointer)]
        return unique(constraint for branch in branches for constraint in branch)

    def _one_of(self, schema: dict[str, Any], pointer: str, depth: int) -> Sequence[Constraint]:
        branches = [self.schema(place, depth) for place in schema_list(schema, "oneOf", pointer)]
        overlapping = [
            (first, second)
            for first, second in combinations(range(len(branches)), 2)
            if not are_disjoint(branches[first], branches[second], self.expand)
        ]
        rivals: dict[int, list[int]] = {idx: [] for idx in range(len(branches))}
        for first, second in overlapping:
            rivals[first].append(second)
            rivals[second].append(first)
        found: list[Constraint] = []
        for idx, branch in enumerate(branches):
            for rival in rivals[idx]:
                try:
                    branch = meet_lists(branch, negated(branches[rival]))
                except CannotNegateError as error:
                    raise UnsupportedSchemaError(
                        pointer,
                        "oneOf",
                        f"branches {idx} and {rival} may both hold; set them apart by the type or by a required"
                        f" property with different 'const' values, or write 'anyOf' ({error})",
                    ) from error
            found += branch
        return unique(found)

    def _not(self, schema: dict[str, Any], pointer: str, depth: int) -> Sequence[Constraint]:
        return negated(self.schema(child_pointer(pointer, "not"), depth))

    def _if(self, schema: dict[str, Any], pointer: str, depth: int) -> Sequence[Constraint]:
        if "then" not in schema and "else" not in schema:
            return ALL_TYPES
        condition = self.schema(child_pointer(pointer, "if"), depth)
        found: list[Constraint] = []
        for keyword, matching in (("then", condition), ("else", negated(condition))):
            branch = self.schema(child_pointer(pointer, keyword), depth) if keyword in schema else ALL_TYPES
            found += meet_lists(matching, branch)
        return unique(found)

    def _dependent_required(self, schema: dict[str, Any], pointer: str, depth: int) -> Sequence[Constraint]:
        dependents = _mapping(schema, "dependentRequired", pointer)
        found: list[Constraint] = list(ALL_TYPES)
        for name, needed in dependents.items():
            names = string_list(needed, "dependentRequired", pointer)
            present = Objects(required=tuple(dict.fromkeys((name, *names))))
            found = meet_lists(found, [*_NOT_OBJECTS, _without_property(name), present])
        return found

    def _dependent_schemas(self, schema: dict[str, Any], pointer: str, depth: int) -> Sequence[Constraint]:
        found: list[Constraint] = list(ALL_TYPES)
        for name in _mapping(schema, "dependentSchemas", pointer):
            applied = self.schema(child_pointer(pointer, "dependentSchemas", name), depth)
            present = meet_lists([Objects(required=(name,))], applied)
            found = meet_lists(found, [*_NOT_OBJECTS, _without_property(name), *present])
        return found


_TOO_MANY = "its alternatives combine to too many"
_NOT_OBJECTS = [kind for kind in ALL_TYPES if not isinstance(kind, Objects)]
_IN_PLACE: dict[str, Keyword] = {
    "const": Expander._const,
    "enum": Expander._enum,
    "$ref": Expander._ref,
    "allOf": Expander._all_of,
    "anyOf": Expander._any_of,
    "oneOf": Expander._one_of,
    "not": Expander._not,
    "if": Expander._if,
    "dependentRequired": Expander._dependent_required,
    "dependentSchemas": Expander._dependent_schemas,
}


def value_constraints(value: Any, pointer: str) -> list[Constraint]:
    """Exactly this value. Items and properties of it are places of their own."""
    if value is None:
        return [Null()]
    if isinstance(value, bool):
        return [Bools(frozenset({value}))]
    if isinstance(value, str):
        return [Strings(values=(value,))]
    if isinstance(value, list):
        items = tuple((Place(child_pointer(pointer, idx), "value"),) for idx in range(len(value)))
        return [Arrays((ArrayPart(items, NEVER),), len(value), len(value))]
    if isinstance(value, dict):
        properties = tuple((name, (Place(child_pointer(pointer, name), "value"),)) for name in value)
        return [Objects((ObjectPart(properties, (), NEVER),), tuple(value))]
    return [Numbers(values=(Decimal(value),))]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _without_property(name: str) -> Objects:
    return replace(Objects(), parts=(ObjectPart(((name, NEVER),), (), ANYTHING),))


def _mapping(schema: dict[str, Any], keyword: str, pointer: str) -> dict[str, Any]:
    if not isinstance(schema[keyword], dict):
        raise UnsupportedSchemaError(pointer, keyword, "it must be an object")
    return dict(schema[keyword])
