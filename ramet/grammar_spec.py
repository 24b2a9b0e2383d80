"""GrammarSpec: what a generated text must be, as the user said it. Shared by the language and the engine.

It is plain data: hashable, comparable, checked for its form only. Whether it can be enforced is found out where a
vocabulary is known, when a request is submitted (`runtime/grammar`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

GrammarKind = Literal["regex", "json_schema", "ebnf", "choices", "tagged_text"]
JsonWhitespace = Literal["fixed", "compact", "flexible"]
OnIncomplete = Literal["return", "raise", "close"]

MAX_SOURCE_CHARS = 1 << 20


class InvalidGrammarSpecError(ValueError):
    """A constraint is not of a form that could be enforced. The message says what was given and what is needed."""


@runtime_checkable
class JsonModel(Protocol):
    """A class that has a JSON schema and parses JSON, such as a pydantic model."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]: ...

    @classmethod
    def model_validate_json(cls, json_data: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """The language a generated text must belong to.

    Attributes:
        kind: how `source` is written.
        source: a regular expression in Python's syntax, matched as by re.fullmatch; a JSON schema as JSON text;
            a grammar in GBNF ("root ::= ...") or Lark ("start: ...") notation; the allowed texts; or, of a text with
            tool calls in it, what `runtime/grammar/tagged_text.py` writes.
        json_whitespace: of a JSON schema: "fixed" puts one space after "," and ":" and none elsewhere, "compact"
            none at all, "flexible" lets the model choose, up to a bound.
        backend: name of the grammar backend; None is the default one.
        prefix: literal text that is generated before the rest, taken back from the end of the prompt because a token
            may span the boundary.
    """

    kind: GrammarKind
    source: str | tuple[str, ...]
    json_whitespace: JsonWhitespace = "fixed"
    backend: str | None = None
    prefix: str = ""

    @property
    def num_source_chars(self) -> int:
        return len(self.source) if isinstance(self.source, str) else sum(map(len, self.source))


def schema_text(schema: object) -> str:
    """A JSON schema, given as a dict, a bool, JSON text or a JsonModel class, as JSON text. Key order is kept.

    A model says all that it takes, so the objects of its schema have no properties but those it names, unless it says
    otherwise (pydantic's extra="allow").

    Raises:
        InvalidGrammarSpecError: none of these, or not JSON.
    """
    if isinstance(schema, type) and isinstance(schema, JsonModel):
        schema = _closed(schema.model_json_schema())
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidGrammarSpecError(f"json_schema={schema!r:.80} is not JSON: {error}") from error
    if not isinstance(schema, Mapping | bool):
        raise InvalidGrammarSpecError(f"json_schema={schema!r:.80} must be a dict, JSON text or a pydantic model class")
    try:
        return json.dumps(schema if isinstance(schema, bool) else dict(schema), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGrammarSpecError(f"json_schema={schema!r:.80} cannot be written as JSON: {error}") from error


_SCHEMAS_BY_NAME = ("properties", "$defs", "patternProperties")
_SCHEMA_LISTS = ("anyOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties")


def _closed(schema: Any) -> Any:
    """The schema with additionalProperties false in every object that names properties and does not speak of others."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for key, value in schema.items():
        if key in _SCHEMAS_BY_NAME and isinstance(value, dict):
            closed[key] = {name: _closed(item) for name, item in value.items()}
        elif key in _SCHEMA_LISTS and isinstance(value, list):
            closed[key] = [_closed(item) for item in value]
        elif key in _SCHEMAS:
            closed[key] = _closed(value)
    if "properties" in schema and "allOf" not in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def choices_tuple(choices: object) -> tuple[str, ...]:
    """A list of distinct, non-empty texts.

    Raises:
        InvalidGrammarSpecError: anything else.
    """
    if isinstance(choices, str) or not isinstance(choices, Iterable):
        raise InvalidGrammarSpecError(f"choices={choices!r} is not allowed: it must be a list of strings")
    items = tuple(choices)
    if not items:
        raise InvalidGrammarSpecError("choices=[] is not allowed: give at least one choice")
    for item in items:
        if not isinstance(item, str) or not item:
            raise InvalidGrammarSpecError(f"choices has {item!r:.80}: every choice must be a non-empty string")
    if len(set(items)) != len(items):
        raise InvalidGrammarSpecError("choices has a text twice: they must differ from each other")
    return items
