"""What the OpenAPI document says beyond the types of the routes: how requests fail, which answers are streamed,
where an API key goes, and what our own fields mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from .extension_fields import describe

Node = dict[str, Any]

_ERROR: Node = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type"],
        }
    },
    "required": ["error"],
}
_FAILURE: Node = {
    "description": "The request failed: `message` says why, `param` which field is at fault. "
    "Anthropic's endpoints give no `param` and `code`. 429 and 503 come with `retry-after`.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_KEYS: Node = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "As OpenAI's clients send an API key."},
    "x-api-key": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "As Anthropic's clients send an API key.",
    },
}
EVENTS: Node = {"text/event-stream": {}}
TEXT: Node = {"text/plain": {"schema": {"type": "string"}}}


def answers_as(content: Node, description: str = "Successful Response") -> dict[int | str, Node]:
    """For `responses` of a route that answers with something else than JSON."""
    return {200: {"description": description, "content": content}}


class Document:
    """Makes the document of an application, once. To be put in the place of its `openapi`.

    Args:
        has_keys: an API key is asked for.
        is_public: whether a path is open without one.
    """

    def __init__(self, app: FastAPI, *, has_keys: bool, is_public: Callable[[str], bool]) -> None:
        self._app = app
        self._make = app.openapi
        self._made: Node | None = None
        self._has_keys = has_keys
        self._is_public = is_public

    def __call__(self) -> Node:
        if self._made is None:
            self._made = self._completed(self._make())
        return self._made

    def _completed(self, document: Node) -> Node:
        schemas: Node = document.setdefault("components", {}).setdefault("schemas", {})
        schemas["Error"] = _ERROR
        document["components"]["securitySchemes"] = _KEYS
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["security"] = self._security(path)
                responses = operation["responses"]
                responses.pop("422", None)  # what FastAPI would answer is 400 here
                responses["default"] = _FAILURE
                if _is_streamable(operation, schemas):
                    responses["200"]["content"].update(EVENTS)
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for schema in schemas.values():
            describe(schema.get("properties", {}))
        return document

    def _security(self, path: str) -> list[Node]:
        """Any of the ways to send a key; or none, where `{}` says that a key is taken and not asked for."""
        if self._is_public(path):
            return []
        either: list[Node] = [{name: []} for name in _KEYS]
        return either if self._has_keys else [*either, {}]


def _is_streamable(operation: Node, schemas: Node) -> bool:
    """Its body has a field `stream`."""
    content = operation.get("requestBody", {}).get("content", {})
    schema: Node = content.get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    return "stream" in schemas.get(name, schema).get("properties", {})
