"""Items of `/v1/responses` as the messages of a conversation.

message                  one message
function_call            tool_calls of the assistant's message before it, or of one that it begins
function_call_output     one message of role tool
reasoning                left out: it is another model's
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..chat.turns import OpenAIMessage
from ..errors import ApiError

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text")


def item_messages(given: str | Sequence[Mapping[str, Any]], before: Sequence[OpenAIMessage]) -> list[OpenAIMessage]:
    """One message per item, not joined.

    Args:
        given: a text of the user's, or items.
        before: messages that they follow, for the names of calls that were made there.

    Raises:
        ApiError: 400, an item is of a type that is not served, or malformed, or answers a call that nobody made.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    names = {call["id"]: call["function"]["name"] for message in before for call in message.get("tool_calls", ())}
    messages: list[OpenAIMessage] = []
    for idx, item in enumerate(given):
        where = f"input[{idx}]"
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(_message(where, item))
        elif kind == "function_call":
            call = _call(where, item)
            names[call["id"]] = call["function"]["name"]
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            messages.append(_call_output(where, item, names))
        elif kind != "reasoning":
            raise _refused(f"{where}.type", f"={kind!r:.40} is not served: there are messages and function calls only")
    return messages


def call_message(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call as a message has it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _message(where: str, item: Mapping[str, Any]) -> OpenAIMessage:
    role = item.get("role")
    if role not in _ROLES:
        raise _refused(f"{where}.role", f"={role!r:.40} must be one of {', '.join(_ROLES)}")
    return {"role": role, "content": _text(f"{where}.content", item.get("content"))}


def _call(where: str, item: Mapping[str, Any]) -> dict[str, Any]:
    arguments = _string(where, item, "arguments")
    try:
        is_object = isinstance(json.loads(arguments or "{}"), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise _refused(f"{where}.arguments", f"={arguments!r:.80} must be the JSON text of an object")
    return call_message(_string(where, item, "call_id"), _string(where, item, "name"), arguments)


def _call_output(where: str, item: Mapping[str, Any], names: Mapping[str, str]) -> OpenAIMessage:
    call_id = _string(where, item, "call_id")
    if call_id not in names:
        raise _refused(f"{where}.call_id", f"={call_id!r:.80}: no function_call before it has this call_id")
    content = _text(f"{where}.output", item.get("output"))
    return {"role": "tool", "tool_call_id": call_id, "name": names[call_id], "content": content}


def _text(where: str, content: object) -> str:
    """Parts of text, one a line."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refused(where, f"={content!r:.80} must be a text or a list of text parts")
    return "\n".join(_part_text(f"{where}[{idx}]", part) for idx, part in enumerate(content))


def _part_text(where: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise _refused(f"{where}.type", " is missing: a part has a type, such as 'input_text'")
    if kind == "refusal":
        return _string(where, part, "refusal")
    if kind not in _TEXT_PARTS:
        raise _refused(f"{where}.type", f"={kind!r:.40} cannot be used here: this model reads text only")
    return _string(where, part, "text")


def _string(where: str, item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or (not value and name in ("call_id", "name")):
        raise _refused(f"{where}.{name}", f"={value!r:.80} must be a text")
    return value


def _refused(where: str, why: str) -> ApiError:
    return ApiError(400, where + why, param=where)
