"""A JSON schema read from its text, with the places in it: parsing, limits, JSON pointers, anchors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from ..errors import UnsupportedSchemaError

MAX_DEPTH = 100
MAX_VALUES = 50_000
MAX_EXPONENT = 400
MAX_DIGITS = 400

# What stands below these keywords is data or prose, not schemas.
_DATA_KEYWORDS = frozenset({"const", "enum", "default", "examples", "example"})


class SchemaDocument:
    """A parsed schema. Values are bool, None, str, int, Decimal, list and dict in the order of the text.

    Places are JSON pointers: "" is the root, "/properties/a" a property's schema.
    """

    def __init__(self, text: str) -> None:
        """Read the text.

        Raises:
            UnsupportedSchemaError: it is not JSON, a key stands twice in one object, a number or a string cannot be
                represented, or it is too deep or too large.
        """
        self.root = _parse(text)
        self._anchors: dict[str, str] = {}
        for pointer, value in _walk(self.root):
            if isinstance(value, dict) and isinstance(value.get("$anchor"), str):
                name = value["$anchor"]
                if name in self._anchors:
                    raise UnsupportedSchemaError(pointer, "$anchor", f"{name!r} is defined twice")
                self._anchors[name] = pointer

    def at(self, pointer: str) -> Any:
        """The value at a place that exists."""
        value = self.root
        for step in _steps(pointer):
            value = value[int(step)] if isinstance(value, list) else value[step]
        return value

    def resolve(self, reference: str, pointer: str) -> str:
        """The place that a `$ref`, which stands at `pointer`, points to.

        Raises:
            UnsupportedSchemaError: it leads out of this document, or to nothing.
        """
        base, _, fragment = reference.partition("#")
        root_id = self.root.get("$id") if isinstance(self.root, dict) else None
        if base and base != (root_id.removesuffix("#") if isinstance(root_id, str) else None):
            raise UnsupportedSchemaError(
                pointer,
                "$ref",
                f"{reference!r} is not in this schema, and nothing is fetched; copy it to '$defs' and refer to it as"
                " '#/$defs/name'",
            )
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            if fragment not in self._anchors:
                raise UnsupportedSchemaError(pointer, "$ref", f"{reference!r}: there is no such '$anchor'")
            return self._anchors[fragment]
        self._check_exists(fragment, reference, pointer)
        return fragment

    def _check_exists(self, target: str, reference: str, pointer: str) -> None:
        value = self.root
        for depth, step in enumerate(_steps(target)):
            if isinstance(value, dict) and depth and isinstance(value.get("$id"), str):
                raise UnsupportedSchemaError(
                    pointer, "$ref", f"{reference!r} leads through a schema with its own '$id'"
                )
            is_index = isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value)
            if not is_index and not (isinstance(value, dict) and step in value):
                raise UnsupportedSchemaError(
                    pointer, "$ref", f"{reference!r} leads to nothing: {step!r} does not exist"
                )
            value = value[int(step)] if isinstance(value, list) else value[step]
        if not isinstance(value, dict | bool):
            raise UnsupportedSchemaError(
                pointer, "$ref", f"{reference!r} leads to {type(value).__name__}, not a schema"
            )


def child_pointer(pointer: str, *steps: str | int) -> str:
    """The place some steps below another."""
    return pointer + "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


def _steps(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _parse(text: str) -> Any:
    try:
        root = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_decimal,
            parse_int=_integer,
        )
    except UnsupportedSchemaError:
        raise
    except RecursionError as error:
        raise UnsupportedSchemaError("", None, f"it is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise UnsupportedSchemaError("", None, f"it is not JSON: {error}") from error
    if not isinstance(root, dict | bool):
        raise UnsupportedSchemaError("", None, "it must be a JSON object, true or false")
    for num_before, (pointer, value) in enumerate(_walk(root, into_data=True)):
        if num_before >= MAX_VALUES:
            raise UnsupportedSchemaError("", None, f"it has more than {MAX_VALUES} values")
        if isinstance(value, str):
            _check_text(value, pointer)
        elif isinstance(value, dict):
            for key in value:
                _check_text(key, pointer)
    return root


def _walk(root: Any, *, into_data: bool = False) -> Iterator[tuple[str, Any]]:
    """Every value with its place, parents first. Refuses what is too deep, without recursion."""
    pending: list[tuple[str, Any, int]] = [("", root, 0)]
    while pending:
        pointer, value, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise UnsupportedSchemaError(pointer, None, f"it is nested deeper than {MAX_DEPTH} levels")
        yield pointer, value
        if isinstance(value, dict):
            # An inner "$id" begins another document, whose anchors are not this one's.
            is_other = depth > 0 and isinstance(value.get("$id"), str) and not into_data
            for key, item in value.items():
                if into_data or (key not in _DATA_KEYWORDS and not is_other):
                    pending.append((child_pointer(pointer, key), item, depth + 1))
        elif isinstance(value, list):
            pending += [(child_pointer(pointer, idx), item, depth + 1) for idx, item in enumerate(value)]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise UnsupportedSchemaError("", key, "it stands twice in one object")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> Any:
    raise UnsupportedSchemaError("", None, f"{name} is not JSON")


def _decimal(text: str) -> Decimal:
    number = Decimal(text)
    if len(number.as_tuple().digits) > MAX_DIGITS or abs(number.adjusted()) > MAX_EXPONENT:
        raise UnsupportedSchemaError("", None, f"the number {text[:40]} is too large, too small or too long")
    if number != Decimal(repr(float(text))):
        raise UnsupportedSchemaError("", None, f"the number {text[:40]} is not one that readers of JSON can tell apart")
    return number


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise UnsupportedSchemaError("", None, f"the number {text[:40]}... is too large")
    return int(text)


def _check_text(text: str, pointer: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UnsupportedSchemaError(pointer, None, "a string holds half of a surrogate pair, which no text can hold")
