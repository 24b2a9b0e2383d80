"""Checks chat messages and brings their contents into one form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .json_depth import MAX_JSON_DEPTH, is_too_deep


class ChatTemplateError(ValueError):
    """Messages cannot be put into the model's chat format. The message says which one and why."""


KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool")


def normalise(messages: Sequence[Mapping[str, Any]], template: str | None = None) -> list[dict[str, Any]]:
    """The messages with every content a str, and the arguments of every tool call a mapping.

    A content that is None or absent becomes "", and a list of {"type": "text", "text": ...} parts their texts joined by
    newlines. Arguments may come as JSON text. An empty list of tool calls is left out.

    Args:
        template: source of the chat template; roles it mentions are allowed beside the usual ones.

    Raises:
        ChatTemplateError: a message is not a mapping, has no role or an unknown one, lacks a content that is no
            answer's, has a content of another form, or a tool call without a name or with arguments that are no object.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise ChatTemplateError(f"messages={messages!r:.80} must be a list of {{'role': ..., 'content': ...}}")
    return [_normalise_one(idx, message, template or "") for idx, message in enumerate(messages)]


def _normalise_one(idx: int, message: Mapping[str, Any], template: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"messages[{idx}]={message!r:.80} must be a mapping with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ChatTemplateError(f"messages[{idx}] has role={role!r}; it must be a string such as 'user'")
    if role not in KNOWN_ROLES and role not in template:
        raise ChatTemplateError(f"messages[{idx}] has role={role!r}; known roles are {', '.join(KNOWN_ROLES)}")
    if "content" not in message and role in ("system", "developer", "user"):
        raise ChatTemplateError(f"messages[{idx}] of role {role!r} has no content")
    plain = {**message, "content": content_text(f"messages[{idx}].content", message.get("content"))}
    calls = plain.pop("tool_calls", None)
    return {**plain, "tool_calls": plain_tool_calls(f"messages[{idx}].tool_calls", calls)} if calls else plain


def content_text(where: str, content: object) -> str:
    """The text of a content: of parts their texts, one a line; none if it is None.

    Raises:
        ChatTemplateError: it is neither a text nor a list of text parts.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise ChatTemplateError(f"{where}={content!r:.80} must be a string or a list of text parts")
    texts = []
    for part_idx, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise ChatTemplateError(
                f"{where}[{part_idx}]={part!r:.80} is not a text part; "
                "only {'type': 'text', 'text': ...} is supported"
            )
        texts.append(text)
    return "\n".join(texts)


def plain_tool_calls(where: str, calls: object) -> list[dict[str, Any]]:
    """The calls of an answer as OpenAI writes them, but with the arguments as a mapping.

    Raises:
        ChatTemplateError: not a list of calls, each with a name and arguments that are an object.
    """
    if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Sequence):
        raise ChatTemplateError(f"{where}={calls!r:.80} must be a list of calls")
    return [_tool_call(f"{where}[{call_idx}]", call) for call_idx, call in enumerate(calls)]


def _tool_call(where: str, call: object) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise ChatTemplateError(f"{where}={call!r:.80} must be {{'function': {{'name': ..., 'arguments': ...}}}}")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ChatTemplateError(f"{where} has name={name!r:.80}; it must be the name of a function")
    arguments = _arguments(where, function.get("arguments"))
    outer = {key: value for key, value in call.items() if key not in ("name", "arguments", "function")}
    inner = dict(function) if "function" in call else {}
    return {"type": "function", **outer, "function": {**inner, "name": name, "arguments": arguments}}


def _arguments(where: str, arguments: object) -> dict[str, Any]:
    """Arguments come as an object or as the JSON text of one; none at all are an empty object."""
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ChatTemplateError(
                f"{where} has arguments that are not JSON ({error}): {arguments!r:.80}; "
                "put what the model wrote into the content instead"
            ) from error
    if arguments is None or arguments == "" or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if not isinstance(arguments, Mapping):
        raise ChatTemplateError(f"{where} has arguments={arguments!r:.80}; they must be a JSON object")
    if is_too_deep(arguments):
        raise ChatTemplateError(
            f"{where} has arguments that are nested too deeply: lists and objects may be in each other "
            f"{MAX_JSON_DEPTH} times"
        )
    return dict(arguments)


def with_argument_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """A normalised message with the arguments of its tool calls as JSON text, for templates that want them so."""
    if "tool_calls" not in message:
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def normalise_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    """
    Raises:
        ChatTemplateError: not a list of functions with a name, in OpenAI's form or without its outer object.
    """
    if tools is None:
        return []
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise ChatTemplateError(f"tools={tools!r:.80} must be a list of JSON schemas of functions")
    for idx, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or not isinstance(tool_name(tool), str):
            raise ChatTemplateError(
                f"tools[{idx}]={tool!r:.80} must be {{'type': 'function', 'function': {{'name': ..., ...}}}}"
            )
    return list(tools)


def tool_name(tool: Mapping[str, Any]) -> object:
    """The name of a tool, or of the function of a tool call; None where there is none."""
    function = tool.get("function", tool)
    return function.get("name") if isinstance(function, Mapping) else None


def structure_texts(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Where and what: the texts that hold a conversation together, which no mark can stand for: roles and names of
    fields."""
    for idx, message in enumerate(messages):
        yield f"messages[{idx}].role", message["role"]
        yield from _keys(f"messages[{idx}]", message)
    for idx, tool in enumerate(tools):
        yield from _keys(f"tools[{idx}]", tool)


def _keys(where: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"a key of {where}", str(key)
            yield from _keys(f"{where}.{key!s:.40}", item)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for idx, item in enumerate(value):
            yield from _keys(f"{where}[{idx}]", item)


def option_texts(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where and what: every text among the variables for a template, names of fields included."""
    yield from _texts("chat_template_kwargs", options)


def _texts(where: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"a key of {where}", str(key)
            yield from _texts(f"{where}.{key!s:.40}", item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for idx, item in enumerate(value):
            yield from _texts(f"{where}[{idx}]", item)
