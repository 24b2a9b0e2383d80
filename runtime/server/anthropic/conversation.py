"""Anthropic's messages, which are made of blocks, in OpenAI's form, which chat templates know.

user       text, tool_result     one message of role tool per result, and the texts in one of role user
assistant  text, tool_use        one message with content and tool_calls
           thinking              left out: it is another model's, and none that the next turn would see
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..chat.turns import OpenAIMessage, joined_turns
from ..errors import ApiError
from .schema import Message

_THOUGHTS = ("thinking", "redacted_thinking")


def openai_messages(system: str | list[dict[str, Any]] | None, messages: Sequence[Message]) -> list[OpenAIMessage]:
    """The whole conversation. Messages of one role that follow each other become one, as in Anthropic's API.

    Raises:
        ApiError: 400, a block is of a type that is not served, or malformed, or answers a call that nobody made.
    """
    return joined_turns(_turns(system, messages))


def _turns(system: str | list[dict[str, Any]] | None, messages: Sequence[Message]) -> Iterator[OpenAIMessage]:
    if system:
        yield {"role": "system", "content": _text("system", system)}
    names: dict[str, str] = {}
    for idx, message in enumerate(messages):
        where = f"messages[{idx}].content"
        if message.role == "user":
            yield from _user_turns(where, message.content, names)
        elif message.role == "assistant":
            turn = _assistant_turn(where, message.content)
            names |= {call["id"]: call["function"]["name"] for call in turn.get("tool_calls", ())}
            yield turn
        else:
            yield {"role": "system", "content": _text(where, message.content)}


def _user_turns(where: str, content: str | list[dict[str, Any]], names: Mapping[str, str]) -> Iterator[OpenAIMessage]:
    if isinstance(content, str):
        yield {"role": "user", "content": content}
        return
    if not content:
        raise _refused(where, " is an empty list: nobody has said anything")
    for at, block in _located(where, content):
        if block.get("type") == "tool_result":
            yield _tool_result(at, block, names)
        else:
            yield {"role": "user", "content": _block_text(at, block)}


def _tool_result(where: str, block: Mapping[str, Any], names: Mapping[str, str]) -> OpenAIMessage:
    call_id = _string(where, block, "tool_use_id")
    if call_id not in names:
        raise _refused(f"{where}.tool_use_id", f"={call_id!r:.80}: no tool_use block before it has this id")
    content = block.get("content")
    if content is not None and not isinstance(content, str | list):
        raise _refused(f"{where}.content", " must be a text or a list of text blocks")
    text = _text(f"{where}.content", content or "")
    if block.get("is_error"):  # OpenAI's form has no other place for it
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": call_id, "name": names[call_id], "content": text}


def _assistant_turn(where: str, content: str | list[dict[str, Any]]) -> OpenAIMessage:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts, calls = [], []
    for at, block in _located(where, content):
        if block.get("type") == "tool_use":
            calls.append(_tool_call(at, block))
        elif block.get("type") not in _THOUGHTS:
            texts.append(_block_text(at, block))
    return {"role": "assistant", "content": "\n".join(texts)} | ({"tool_calls": calls} if calls else {})


def _tool_call(where: str, block: Mapping[str, Any]) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict):
        raise _refused(f"{where}.input", f"={given!r:.80} must be an object")
    function = {"name": _string(where, block, "name"), "arguments": json.dumps(given, ensure_ascii=False)}
    return {"id": _string(where, block, "id"), "type": "function", "function": function}


def _text(where: str, content: str | list[dict[str, Any]]) -> str:
    """Blocks of text, one a line."""
    if isinstance(content, str):
        return content
    return "\n".join(_block_text(at, block) for at, block in _located(where, content))


def _block_text(where: str, block: object) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(kind, str):
        raise _refused(f"{where}.type", " is missing: a block has a type, such as 'text'")
    if kind != "text":
        raise _refused(f"{where}.type", f"={kind!r:.40} cannot be used here: this model reads text only")
    return _string(where, block, "text")


def _located(where: str, blocks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"{where}[{idx}]", block) for idx, block in enumerate(blocks))


def _string(where: str, block: Mapping[str, Any], name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str) or (not value and name != "text"):
        raise _refused(f"{where}.{name}", f"={value!r:.80} must be a text")
    return value


def _refused(where: str, why: str) -> ApiError:
    return ApiError(400, where + why, param=where)
