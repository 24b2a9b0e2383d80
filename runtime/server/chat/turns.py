"""Conversations put together out of pieces that are smaller than messages: blocks of Anthropic's, items of OpenAI's."""

from __future__ import annotations

from typing import Any

OpenAIMessage = dict[str, Any]


def append_turn(turns: list[OpenAIMessage], turn: OpenAIMessage) -> None:
    """Add a message; one of the same role as the last joins it, for many templates want the roles to alternate. Tool
    results stay apart. Replaces the last of `turns`, mutates no message."""
    last = turns[-1] if turns else None
    if last is None or last["role"] != turn["role"] or turn["role"] == "tool":
        turns.append(turn)
        return
    contents = [message["content"] for message in (last, turn) if message["content"]]
    calls = [*last.get("tool_calls", ()), *turn.get("tool_calls", ())]
    joined = {"role": turn["role"], "content": "\n".join(contents)}
    turns[-1] = joined | ({"tool_calls": calls} if calls else {})
