"""What a model is told of tools where its template cannot say it, and the JSON schemas of calls.

The language and the server share it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .chat_message import content_text, plain_tool_calls
from .tool_formats import ToolFormat
from .tool_parameters import closed_parameters

Function = Mapping[str, Any]
"""What a model is told of a function: {"name": ..., "description": ..., "parameters": {...}}."""

_INSTRUCTIONS = """\
You may call these functions:
{tools}
To call one, write only this:
{example}"""


def call_schema(functions: Sequence[Function], arguments_key: str) -> dict[str, Any]:
    """The JSON schema of a call of one of these. References inside a function's schema lead where they led."""
    calls = []
    definitions: dict[str, Any] = {}
    for idx, function in enumerate(functions):
        definitions[f"tool{idx}"] = _moved(closed_parameters(function), f"#/$defs/tool{idx}")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, arguments_key: {"$ref": f"#/$defs/tool{idx}"}},
                "required": ["name", arguments_key],
                "additionalProperties": False,
            }
        )
    return {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), "$defs": definitions}


def tell_of_tools(
    messages: Sequence[Mapping[str, Any]], functions: Sequence[Function], tool_format: ToolFormat
) -> list[Mapping[str, Any]]:
    """The messages for a template that knows no tools: they are described in the system message, and calls are written
    into the contents.

    Raises:
        ChatTemplateError: a message has malformed tool calls, or a content that is no text and had to be looked into.
    """
    written = [_without_calls(idx, message, tool_format) for idx, message in enumerate(messages)]
    if not functions:
        return written
    told = instructions(functions, tool_format)
    if written and written[0].get("role") == "system":
        text = content_text("messages[0].content", written[0].get("content"))
        return [{**written[0], "content": f"{text}\n\n{told}"}, *written[1:]]
    return [{"role": "system", "content": told}, *written]


def instructions(functions: Sequence[Function], tool_format: ToolFormat) -> str:
    """What the system message says of the tools."""
    lines = [json.dumps(function, ensure_ascii=False) for function in functions]
    example = tool_format.write([("NAME", {"PARAMETER": "VALUE"})])
    return _INSTRUCTIONS.format(tools="\n".join(lines), example=example)


def _without_calls(idx: int, message: Mapping[str, Any], tool_format: ToolFormat) -> Mapping[str, Any]:
    if not message.get("tool_calls"):
        return message
    plain = plain_tool_calls(f"messages[{idx}].tool_calls", message["tool_calls"])
    calls = tool_format.write([(call["function"]["name"], call["function"]["arguments"]) for call in plain])
    said = content_text(f"messages[{idx}].content", message.get("content"))
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(text for text in (said, calls) if text)}


def _moved(schema: Any, root: str) -> Any:
    """A schema with its references changed for a place below another one."""
    if isinstance(schema, Mapping):
        return {
            key: f"{root}{value[1:]}"
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, root)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_moved(item, root) for item in schema]
    return schema
