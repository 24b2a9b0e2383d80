"""Anthropic's blocks as messages that a chat template knows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramet.runtime.server.anthropic.conversation import openai_messages
from ramet.runtime.server.anthropic.schema import Message
from ramet.runtime.server.errors import ApiError


def converted(*messages: dict[str, Any], system: Any = None) -> list[dict[str, Any]]:
    return openai_messages(system, [Message.model_validate(message) for message in messages])


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content, "cache_control": {"type": "ephemeral"}}


CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln", "days": 2}}


def test_texts_and_blocks_of_text_are_the_same() -> None:
    assert converted({"role": "user", "content": "Hi."}, system="Be kind.") == converted(
        {"role": "user", "content": [text("Hi.")]}, system=[text("Be kind.")]
    )
    assert converted({"role": "user", "content": [text("one"), text("two")]})[0]["content"] == "one\ntwo"


def test_a_call_and_its_result() -> None:
    messages = converted(
        {"role": "user", "content": "Rain?"},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "?", "signature": "x"}, text("Wait."), CALL],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("It"), text("rains.")]},
                text("So?"),
            ],
        },
    )
    call = messages[1]["tool_calls"][0]
    assert json.loads(call["function"].pop("arguments")) == CALL["input"]
    assert messages[1:] == [
        {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": {"name": "weather"}}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "name": "weather", "content": "It\nrains."},
        {"role": "user", "content": "So?"},
    ]


@pytest.mark.parametrize(("content", "expected"), [("down", "Error: down"), (None, "Error: "), ([], "Error: ")])
def test_a_result_that_is_an_error_says_so(content: Any, expected: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, "is_error": True}
    (_, message) = converted({"role": "assistant", "content": [CALL]}, {"role": "user", "content": [result]})
    assert message["content"] == expected


def test_messages_of_one_role_become_one() -> None:
    messages = converted(
        {"role": "user", "content": "a"},
        {"role": "user", "content": [text("b")]},
        {"role": "assistant", "content": [CALL]},
        {"role": "assistant", "content": [text("c"), {**CALL, "id": "toolu_2"}]},
    )
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[0]["content"] == "a\nb"
    assert messages[1]["content"] == "c"
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["toolu_1", "toolu_2"]


@pytest.mark.parametrize("before", [[], [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]])
def test_a_user_who_says_nothing_is_told(before: list[dict[str, Any]]) -> None:
    with pytest.raises(ApiError, match="is an empty list") as caught:
        converted(*before, {"role": "user", "content": []})
    assert (caught.value.status, caught.value.param) == (400, f"messages[{len(before)}].content")


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"type": "image", "source": {"type": "url", "url": "http://x"}}, "type"),
        ({"type": "document"}, "type"),
        ({"text": "no type"}, "type"),
        ({"type": ["text"]}, "type"),
        ({"type": "text"}, "text"),
        ({"type": "text", "text": 1}, "text"),
        ({"type": "tool_result", "tool_use_id": "who"}, "tool_use_id"),
        ({"type": "tool_result"}, "tool_use_id"),
        ({"type": "tool_use", "id": "a", "name": "b", "input": {}}, "type"),
    ],
)
def test_other_blocks_are_refused_by_name(block: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as caught:
        converted({"role": "user", "content": [text("ok"), block]})
    assert (caught.value.status, caught.value.param) == (400, f"messages[0].content[1].{field}")
    assert caught.value.message.startswith(f"messages[0].content[1].{field}")


@pytest.mark.parametrize(
    ("changes", "field"), [({"input": "{}"}, "input"), ({"id": ""}, "id"), ({"name": None}, "name")]
)
def test_malformed_calls_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as caught:
        converted({"role": "assistant", "content": [{**CALL, **changes}]})
    assert caught.value.param == f"messages[0].content[0].{field}"


@pytest.mark.parametrize("content", [5, [{"type": "image"}], [7]])
def test_results_hold_texts_only(content: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content}
    with pytest.raises(ApiError) as caught:
        converted({"role": "assistant", "content": [CALL]}, {"role": "user", "content": [result]})
    assert str(caught.value.param).startswith("messages[1].content[0].content")
