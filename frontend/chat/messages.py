"""Messages of a conversation, as OpenAI writes them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..backend import Message
from ..errors import InvalidProgramError
from .tool_formats import ToolCall

CONVERSATION_ROLES = ("system", "developer", "user", "assistant", "tool")


def checked_messages(messages: object) -> list[Message]:
    """Copies of the messages.

    Raises:
        InvalidProgramError: not a list of messages.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidProgramError(f"messages={messages!r:.80} is not allowed: give a list of {{'role', 'content'}}")
    return [checked_message(message, f"messages[{idx}]") for idx, message in enumerate(messages)]


def checked_message(message: object, where: str) -> Message:
    """A copy of the message. What its role and template need beyond this form is checked when it is sent.

    Raises:
        InvalidProgramError: not a mapping with a known role and a content that is a text, a list of parts or None.
    """
    if not isinstance(message, Mapping) or message.get("role") not in CONVERSATION_ROLES:
        raise InvalidProgramError(
            f"{where}={message!r:.80} is not allowed: it must be {{'role': ..., 'content': ...}}, and the role one of "
            f"{', '.join(CONVERSATION_ROLES)}"
        )
    content = message.get("content")
    if content is not None and not isinstance(content, str | list | tuple):
        raise InvalidProgramError(f"{where} has content={content!r:.80}: it must be a text or a list of text parts")
    return copy.deepcopy(dict(message))


def open_tool_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """The calls of the last answer that have no result yet.

    Raises:
        InvalidProgramError: a call is malformed.
    """
    idx = len(messages) - 1
    while idx >= 0 and messages[idx]["role"] == "tool":
        idx -= 1
    if idx < 0 or messages[idx]["role"] != "assistant":
        return []
    answered = [message.get("tool_call_id") for message in messages[idx + 1 :]]
    calls = [_call(call) for call in messages[idx].get("tool_calls") or ()]
    return [call for call in calls if call.call_id not in answered]


def _call(call: Any) -> ToolCall:
    try:
        function = call["function"]
        arguments = function.get("arguments") or {}
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        return ToolCall(str(call.get("id", "")), str(function["name"]), dict(given))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidProgramError(
            f"the tool call {call!r:.200} is not {{'id': ..., 'function': {{'name': ..., 'arguments': '{{...}}'}}}}"
        ) from error
