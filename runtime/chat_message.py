"""Checks chat messages and brings their contents into one form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class ChatTemplateError(ValueError):
    """Messages cannot be put into the model's chat format. The message says which one and why."""


KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool")


def normalise(messages: Sequence[Mapping[str, Any]], template: str | None = None) -> list[dict[str, Any]]:
    """The messages with every content a str.

    None becomes "", and a list of {"type": "text", "text": ...} parts their texts joined by newlines.

    Args:
        template: source of the chat template; roles it mentions are allowed beside the usual ones.

    Raises:
        ChatTemplateError: a message is not a mapping, has no role or an unknown one, lacks a content that is no
            answer's, or has a content of another form.
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
    return {**message, "content": _text_of(idx, message.get("content"))}


def _text_of(idx: int, content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise ChatTemplateError(f"messages[{idx}].content={content!r:.80} must be a string or a list of text parts")
    texts = []
    for part_idx, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise ChatTemplateError(
                f"messages[{idx}].content[{part_idx}]={part!r:.80} is not a text part; "
                "only {'type': 'text', 'text': ...} is supported"
            )
        texts.append(text)
    return "\n".join(texts)


def text_fields(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> Iterator[tuple[str, str]]:
    """Where and what: every string in messages and tools that is not the content of a message."""
    for idx, message in enumerate(messages):
        for name, value in message.items():
            if name != "content":
                yield from _strings(f"messages[{idx}].{name}", value)
    for idx, tool in enumerate(tools or ()):
        yield from _strings(f"tools[{idx}]", tool)


def _strings(where: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"a key of {where}", str(key)
            yield from _strings(f"{where}.{key}", item)
    elif isinstance(value, Sequence):
        for idx, item in enumerate(value):
            yield from _strings(f"{where}[{idx}]", item)
