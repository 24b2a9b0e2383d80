"""The chat format of the mock backend: plain enough to read in a test."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...chat_message import normalise
from ..backend import Message, TextSegment

CHAT_TOKENS = ("<|begin|>", "<|start|>", "<|end|>")


def role_begin(role: str) -> tuple[TextSegment, ...]:
    return (TextSegment(f"<|start|>{role}\n", is_template=True),)


def role_end() -> tuple[TextSegment, ...]:
    return (TextSegment("<|end|>\n", is_template=True),)


def chat_text(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, *, add_generation_prompt: bool
) -> tuple[TextSegment, ...]:
    """The whole conversation; see MockBackend.chat_segments.

    Raises:
        ChatTemplateError: a message is malformed, as a model's own template sees it.
    """
    segments: list[TextSegment] = []
    if tools:
        segments += [*role_begin("tools"), TextSegment(json.dumps(list(tools))), *role_end()]
    for idx, message in enumerate(normalise(messages)):
        segments += role_begin(message["role"])
        where = f"messages[{idx}].content ({message['role']})"
        segments += [TextSegment(text, origin=where) for text in (message["content"],) if text]
        segments += [TextSegment(_call_text(call["function"])) for call in message.get("tool_calls", ())]
        segments += role_end()
    if add_generation_prompt:
        segments += role_begin("assistant")
    return tuple(segments)


def _call_text(function: Mapping[str, Any]) -> str:
    return json.dumps({"name": function["name"], "arguments": function["arguments"]})
