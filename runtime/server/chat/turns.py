"""Conversations put together out of pieces that are smaller than messages: blocks of Anthropic's, items of OpenAI's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

OpenAIMessage = dict[str, Any]


def joined_turns(turns: Iterable[OpenAIMessage]) -> list[OpenAIMessage]:
    """Those of one role that follow each other as one message, for many templates want the roles to alternate: their
    texts, one a line, and all their calls. Tool results stay apart. Linear; mutates no message."""
    messages: list[OpenAIMessage] = []
    for role, run in groupby(turns, itemgetter("role")):
        same = list(run)
        messages += same if role == "tool" else [_joined(same)]
    return messages


def _joined(run: Sequence[OpenAIMessage]) -> OpenAIMessage:
    if len(run) == 1:
        return run[0]
    contents = [turn["content"] for turn in run if turn["content"]]
    calls = [call for turn in run for call in turn.get("tool_calls", ())]
    return {"role": run[0]["role"], "content": "\n".join(contents)} | ({"tool_calls": calls} if calls else {})
