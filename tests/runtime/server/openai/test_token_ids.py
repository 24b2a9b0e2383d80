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


def prompts_of_stream(http: httpx2.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """The ids of prompts that chunks tell, and which choice they stand at, if at any."""
    found = []
    for line in http.post(path, json={**body, "stream": True}).text.split("\n\n"):
        if line and line != "data: [DONE]":
            chunk = json.loads(line.removeprefix("data: "))
            found += [(None, chunk["prompt_token_ids"])] if "prompt_token_ids" in chunk else []
            found += [
                (each["index"], each["prompt_token_ids"]) for each in chunk["choices"] if "prompt_token_ids" in each
            ]
    return found


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


def test_the_ids_of_a_chats_prompt_are_told_once(http: httpx2.Client) -> None:
    body = {"messages": QUESTION, "max_tokens": 3, "n": 2, "return_token_ids": True}
    whole = http.post(CHAT, json=body).json()["prompt_token_ids"]
    assert prompts_of_stream(http, CHAT, body) == [(None, whole)]
    assert prompts_of_stream(http, CHAT, body | {"return_token_ids": False}) == []


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"echo": True, "logprobs": 1}, {"max_tokens": 0}], ids=str)
def test_each_choice_of_a_completion_tells_its_prompt_once(http: httpx2.Client, fields: dict[str, Any]) -> None:
    path = "/v1/completions"
    body = {"prompt": ["Hello,", "my name"], "max_tokens": 3, "n": 2, "return_token_ids": True, **fields}
    whole = [(each["index"], each["prompt_token_ids"]) for each in http.post(path, json=body).json()["choices"]]
    assert len(whole) == 4
    assert sorted(prompts_of_stream(http, path, body)) == whole
    assert prompts_of_stream(http, path, body | {"return_token_ids": False}) == []


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
