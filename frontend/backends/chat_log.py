"""A chat format for APIs that take messages instead of text: marks around each message, and the way back from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..backend import Message, TextSegment
from .errors import UnsupportedByBackendError
from .text_ids import check_unicode

CHAT_ROLES = ("system", "developer", "user", "assistant")

_END = "<|end|>\n"
_MARK = re.compile(r"<\|(?:(system|developer|user|assistant)|end)\|>\n")


@dataclass(frozen=True, slots=True)
class ChatLog:
    """A program's text as an API takes it.

    Attributes:
        messages: the complete ones, as (role, text).
        open_text: what the assistant's message, in which the model goes on, begins with.
    """

    messages: tuple[tuple[str, str], ...]
    open_text: str


def role_begin(role: str, backend: str) -> tuple[TextSegment, ...]:
    """
    Raises:
        UnsupportedByBackendError: the API has no such role, or none that a program could use.
    """
    if role not in CHAT_ROLES:
        raise UnsupportedByBackendError(
            f"the {backend} backend cannot do {role!r} messages: it has {', '.join(CHAT_ROLES)}; what tools say can be "
            "told in a user message"
        )
    return (TextSegment(f"<|{role}|>\n", is_template=True),)


def role_end() -> tuple[TextSegment, ...]:
    return (TextSegment(_END, is_template=True),)


def chat_segments(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    add_generation_prompt: bool,
    backend: str,
) -> tuple[TextSegment, ...]:
    """A whole conversation.

    Raises:
        UnsupportedByBackendError: there are tools, calls of tools, or parts that are no text.
    """
    if tools:
        raise UnsupportedByBackendError(
            f"the {backend} backend cannot do tools: the API answers with calls that are no text of a program; "
            "describe them in a system message, or run this on a local model"
        )
    segments: list[TextSegment] = []
    for message in messages:
        segments += role_begin(str(message.get("role")), backend)
        segments.append(TextSegment(_text_of(message, backend)))
        segments += role_end()
    if add_generation_prompt:
        segments += role_begin("assistant", backend)
    return tuple(segment for segment in segments if segment.text)


def _text_of(message: Message, backend: str) -> str:
    content = message.get("content")
    if message.get("tool_calls"):
        raise UnsupportedByBackendError(f"the {backend} backend cannot do tool_calls: write them as text")
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise UnsupportedByBackendError(f"the {backend} backend takes text only: a message has {content!r}")
    return "\n".join(map(str, texts))


def read_chat(segments: Sequence[TextSegment], backend: str) -> ChatLog:
    """Messages from a program's text, which ends in an open message of the assistant.

    Raises:
        UnsupportedByBackendError: there is text outside messages, or the open message is not the assistant's.
        ValueError: a text cannot be sent at all.
    """
    messages: list[tuple[str, str]] = []
    role: str | None = None
    text = ""
    for segment in segments:
        if not segment.is_template:
            if role is None:
                raise UnsupportedByBackendError(
                    f"the {backend} backend takes chat messages only, and {segment.text[:60]!r} stands outside of "
                    "them: put it in s += user(...), and the gen in s += assistant(...)"
                )
            check_unicode(segment.text)
            text += segment.text
            continue
        for mark in _MARK.finditer(segment.text):
            if mark.group(1) is None:
                assert role is not None
                messages.append((role, text))
            role, text = mark.group(1), ""
    if role != "assistant":
        raise UnsupportedByBackendError(
            f"the {backend} backend can only write the assistant's messages, and the open one is {role or 'none'}: put "
            "the gen in s += assistant(...)"
        )
    return ChatLog(tuple(messages), text)
