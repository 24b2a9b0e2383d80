"""Messages of a conversation, as OpenAI writes them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from ...chat_message import ChatTemplateError, content_text, plain_tool_calls
from ...tool_formats import ToolCall
from ..backend import Message
from ..errors import InvalidProgramError

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
        InvalidProgramError: not a mapping with a known role, a content that is a text, a list of text parts or None,
            and tool calls, if any, with a name and arguments that are an object or the JSON text of one.
    """
    if not isinstance(message, Mapping) or message.get("role") not in CONVERSATION_ROLES:
        raise InvalidProgramError(
            f"{where}={message!r:.80} is not allowed: it must be {{'role': ..., 'content': ...}}, and the role one of "
            f"{', '.join(CONVERSATION_ROLES)}"
        )
    try:
        content_text(f"{where}.content", message.get("content"))
        if message.get("tool_calls"):
            plain_tool_calls(f"{where}.tool_calls", message["tool_calls"])
        return copy.deepcopy(dict(message))
    except ChatTemplateError as error:
        raise InvalidProgramError(str(error)) from None
    except Exception as error:  # of the values' own copying
        raise InvalidProgramError(f"{where} cannot be copied: {type(error).__name__}: {error}") from error


def open_tool_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """The calls of the last answer that have no result yet."""
    idx = len(messages) - 1
    while idx >= 0 and messages[idx]["role"] == "tool":
        idx -= 1
    if idx < 0 or messages[idx]["role"] != "assistant":
        return []
    answered = [message.get("tool_call_id") for message in messages[idx + 1 :]]
    given = plain_tool_calls(f"messages[{idx}].tool_calls", messages[idx].get("tool_calls") or ())
    calls = [
        ToolCall(str(call.get("id", "")), call["function"]["name"], call["function"]["arguments"]) for call in given
    ]
    return [call for call in calls if call.call_id not in answered]
