"""Stop strings end what is content. They never cut a call, whole or streamed, in any family of endpoints."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.model

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
CHAT: dict[str, Any] = {
    "messages": QUESTION,
    "max_tokens": 60,
    "temperature": 0,
    "parallel_tool_calls": False,
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}],
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def streamed(answer: httpx2.Response) -> tuple[str, str, str | None]:
    content, given, finish = "", "", None
    for line in answer.text.splitlines():
        if line.startswith("data: {"):
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            content += choice["delta"].get("content") or ""
            given += "".join(call["function"]["arguments"] for call in choice["delta"].get("tool_calls", ()))
            finish = choice["finish_reason"] or finish
    return content, given, finish


@pytest.mark.parametrize("stop", ["}", "\n", "a", '"', "<"])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=str)
def test_a_call_that_has_to_be_is_whole(http: httpx2.Client, choice: Any, stop: str) -> None:
    body = {**CHAT, "tool_choice": choice, "stop": stop}
    (answer,) = http.post("/v1/chat/completions", json=body).json()["choices"]
    assert (answer["finish_reason"], answer["stop_reason"], answer["message"]["content"]) == ("tool_calls", None, None)
    (call,) = answer["message"]["tool_calls"]
    assert set(json.loads(call["function"]["arguments"])) == {"city"}
    said = streamed(http.post("/v1/chat/completions", json={**body, "stream": True}))
    assert said == ("", call["function"]["arguments"], "tool_calls")


@pytest.mark.parametrize("stop", ["}", "\n", "a"])
def test_a_tool_use_is_whole(http: httpx2.Client, stop: str) -> None:
    body = {
        "model": "smollm2",
        "messages": QUESTION,
        "max_tokens": 60,
        "stop_sequences": [stop],
        "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    }
    answer = http.post("/v1/messages", json=body).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("tool_use", None)
    (block,) = answer["content"]
    assert set(block["input"]) == {"city"}


def test_content_still_ends_at_a_stop_string_where_tools_may_be_called(http: httpx2.Client) -> None:
    whole = http.post("/v1/chat/completions", json=CHAT).json()["choices"][0]
    content = whole["message"]["content"]
    assert content, "the model answers in words here"
    for stop in (content[5:8], content[-1]):
        (cut,) = http.post("/v1/chat/completions", json={**CHAT, "stop": stop}).json()["choices"]
        assert cut["message"]["content"] == content[: content.index(stop)].rstrip()
        assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5])
def test_of_a_call_that_was_cut_off_in_its_mark_nothing_is_shown(http: httpx2.Client, max_tokens: int) -> None:
    body = {**CHAT, "tool_choice": "required", "max_tokens": max_tokens}
    (answer,) = http.post("/v1/chat/completions", json=body).json()["choices"]
    assert (answer["finish_reason"], answer["message"]["content"]) == ("length", "")
    assert streamed(http.post("/v1/chat/completions", json={**body, "stream": True})) == ("", "", "length")
