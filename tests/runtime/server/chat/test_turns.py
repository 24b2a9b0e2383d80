"""Turns of one role become one message."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ramet.runtime.server.chat.turns import joined_turns

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def turn(role: str, content: str, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": content} | ({"tool_calls": list(calls)} if calls else {})


@pytest.mark.parametrize(
    ("turns", "messages"),
    [
        ([], []),
        ([turn("user", "a")], [turn("user", "a")]),
        ([turn("user", "a"), turn("user", ""), turn("user", "b")], [turn("user", "a\nb")]),
        ([turn("user", "a"), turn("assistant", "b"), turn("user", "c")],) * 2,
        ([turn("tool", "a"), turn("tool", "b")],) * 2,
        ([turn("assistant", "a"), turn("assistant", "", CALL)], [turn("assistant", "a", CALL)]),
        ([turn("assistant", "", CALL), turn("assistant", "", CALL)], [turn("assistant", "", CALL, CALL)]),
    ],
)
def test_turns_of_one_role_are_joined(turns: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(turns)
    assert joined_turns(turns) == messages
    assert turns == before  # others may hold them
