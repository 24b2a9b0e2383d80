"""The many ways in which clients say what a text must be: OpenAI's response_format, vLLM's and SGLang's fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ..errors import ApiError


class ConstrainedFields(Protocol):
    """What is read of a request."""

    response_format: Any
    structured_outputs: Any
    guided_json: Any
    guided_regex: str | None
    guided_choice: list[str] | None
    guided_grammar: str | None
    regex: str | None
    ebnf: str | None
    json_schema: Any


_ANY_OBJECT = {"type": "object"}
_STRUCTURED = {"json": "json_schema", "regex": "regex", "choice": "choices", "grammar": "ebnf"}
_STRUCTURED_NAMES = (*_STRUCTURED, "json_object", "structural_tag")


def constraint_of(request: ConstrainedFields) -> dict[str, Any]:
    """The constraint as a field of SamplingParams; {} if there is none.

    Raises:
        ApiError: it is malformed or not supported, or there are two.
    """
    found = [(name, field, value) for name, field, value in _constraints(request) if value is not None]
    if len(found) > 1:
        (first, *_), (second, *_) = found[:2]
        raise ApiError(400, f"{second} is given beside {first}: a text has one constraint", param=second)
    return {field: value for _, field, value in found}


def constraint_names(request: ConstrainedFields) -> dict[str, str]:
    """What the client calls its constraint, by a regular expression for our name at the beginning of a message."""
    return {rf"^{field}\b": name for name, field, value in _constraints(request) if value is not None}


def _constraints(request: ConstrainedFields) -> Iterator[tuple[str, str, Any]]:
    yield "response_format", "json_schema", _response_format(request.response_format)
    yield from _structured(request.structured_outputs)
    yield "guided_json", "json_schema", request.guided_json
    yield "guided_regex", "regex", request.guided_regex
    yield "guided_choice", "choices", request.guided_choice
    yield "guided_grammar", "ebnf", request.guided_grammar
    yield "regex", "regex", request.regex
    yield "ebnf", "ebnf", request.ebnf
    yield "json_schema", "json_schema", request.json_schema


def _response_format(given: object) -> Any:
    """The schema it asks for; None for plain text."""
    if given is None:
        return None
    fields: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    kind = fields.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = fields.get("schema")  # instructor of old puts it there
        return _ANY_OBJECT if schema is None else _checked("response_format.schema", schema)
    if kind == "json_schema":
        inner = fields.get("json_schema")
        if not isinstance(inner, Mapping) or inner.get("schema") is None:
            raise ApiError(
                400,
                f"response_format.json_schema={inner!r:.80} must be {{'name': ..., 'schema': {{...}}}}; any object is "
                "{'type': 'json_object'}",
                param="response_format.json_schema",
            )
        return _checked("response_format.json_schema.schema", inner["schema"])
    raise ApiError(
        400,
        f"response_format={given!r:.80} must be {{'type': 'text'}}, {{'type': 'json_object'}} or "
        "{'type': 'json_schema', 'json_schema': {...}}",
        param="response_format",
    )


def _structured(given: object) -> Iterator[tuple[str, str, Any]]:
    """vLLM's structured_outputs."""
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise ApiError(400, f"structured_outputs={given!r:.80} must be an object", param="structured_outputs")
    if given and given.keys().isdisjoint(_STRUCTURED_NAMES):
        raise ApiError(
            400,
            f"structured_outputs={given!r:.80} has none of {', '.join(_STRUCTURED_NAMES)}: it must have one",
            param="structured_outputs",
        )
    for name, field in _STRUCTURED.items():
        yield f"structured_outputs.{name}", field, given.get(name)
    if given.get("json_object"):
        yield "structured_outputs.json_object", "json_schema", _ANY_OBJECT
    if given.get("structural_tag") is not None:
        raise ApiError(
            400,
            "structured_outputs.structural_tag is not supported: use json, regex, choice or grammar, or tools",
            param="structured_outputs.structural_tag",
        )


def _checked(where: str, schema: object) -> object:
    if not isinstance(schema, Mapping | bool | str):
        raise ApiError(400, f"{where}={schema!r:.80} must be a JSON schema", param=where)
    return schema
