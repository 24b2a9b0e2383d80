"""The ids of a stream add up to those of the whole answer, whatever of its text is shown."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from ramet import LLM

pytestmark = pytest.mark.model

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "Say hello to the world, and what the weather is in Rome."}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
}
TOOLS = {"tools": [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]}
EMOJI = "😀😀😀"


def ids_of_stream(http: httpx2.Client, path: str, body: dict[str, Any]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    answer = http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    for line in answer.text.split("\n\n"):
        if line and line != "data: [DONE]":
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                found.setdefault(choice["index"], []).extend(choice.get("token_ids", ()))
    return found


def check(http: httpx2.Client, path: str, **fields: Any) -> list[Any]:
    body = {"max_tokens": 12, "temperature": 0, "seed": 7, "return_token_ids": True, **fields}
    body |= {"messages": QUESTION} if path == CHAT else {"prompt": "Hello, my name"}
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert ids_of_stream(http, path, body) == {choice["index"]: choice["token_ids"] for choice in choices}
    return list(choices)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2, "temperature": 1.2},
        {"response_format": {"type": "json_object"}},
        {"logprobs": 1, "n": 2, "temperature": 1.2},
    ],
    ids=["plain", "samples", "json", "logprobs"],
)
def test_of_texts(http: httpx2.Client, path: str, fields: dict[str, Any]) -> None:
    if path == CHAT and "logprobs" in fields:
        fields = {**fields, "logprobs": True}
    assert all(choice["token_ids"] for choice in check(http, path, **fields))


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_of_what_a_stop_string_cuts_off(http: httpx2.Client, path: str) -> None:
    (free,) = check(http, path)
    text = free["message"]["content"] if path == CHAT else free["text"]
    for start in (1, 4, 7):
        (choice,) = check(http, path, stop=[text[start : start + 4]])
        assert choice["stop_reason"] == text[start : start + 4]
        assert choice["token_ids"] == free["token_ids"][: len(choice["token_ids"])]
    (choice,) = check(http, path, stop_token_ids=[free["token_ids"][3]])
    assert choice["stop_reason"] == free["token_ids"][3]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_of_characters_that_are_cut_in_their_middle(http: httpx2.Client, smollm2: LLM, path: str) -> None:
    num_tokens = len(smollm2.tokenizer.encode(EMOJI))
    assert num_tokens > len(EMOJI)
    for max_tokens in range(1, num_tokens + 1):
        (choice,) = check(http, path, max_tokens=max_tokens, regex=f"{EMOJI}(.|\n)*")
        assert len(choice["token_ids"]) == max_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": "required", "parallel_tool_calls": False, "n": 2, "temperature": 1.0},
        {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {"tool_choice": "auto"},
        {"tool_choice": "required", "max_tokens": 5},
        {"tool_choice": "required", "logprobs": True},
    ],
)
def test_of_tool_calls(http: httpx2.Client, fields: dict[str, Any]) -> None:
    for choice in check(http, CHAT, **{"max_tokens": 24, **TOOLS, **fields}):
        assert choice["token_ids"]
