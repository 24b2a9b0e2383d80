"""Libraries that others build on: what they show of usage, streams and ends is what the server said."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.runtime.server.listener import BackgroundServer

from .conftest import Client

QUESTION = "Which animals live in the sea, and which of them can also breathe air?"


@pytest.fixture
def chat(client: Client, server: BackgroundServer) -> Any:
    make = client("langchain_openai").ChatOpenAI
    return make(model="smollm2", base_url=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=12)


def test_langchain_shows_cached_tokens(chat: Any, server: BackgroundServer) -> None:
    server.service.llm.reset_prefix_cache()
    first, again = chat.invoke(QUESTION), chat.invoke(QUESTION)
    assert first.content == again.content
    assert first.response_metadata["finish_reason"] == "length"
    assert first.usage_metadata["input_token_details"].get("cache_read", 0) == 0
    num_prompt_tokens = again.usage_metadata["input_tokens"]
    assert num_prompt_tokens - 1 <= again.usage_metadata["input_token_details"]["cache_read"] <= num_prompt_tokens


def test_langchain_streams_and_batches(chat: Any) -> None:
    pieces = [piece.content for piece in chat.stream(QUESTION)]
    assert len([piece for piece in pieces if piece]) > 1
    answers = chat.batch([QUESTION, "Say hello.", QUESTION])
    assert "".join(pieces) == answers[0].content == answers[2].content


def test_langchain_binds_a_tool(chat: Any) -> None:
    schema = {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    bound = chat.model_copy(update={"max_tokens": 60}).bind_tools([schema], tool_choice="weather")
    (call,) = bound.invoke("How is the weather in Rome?").tool_calls
    assert call["name"] == "weather"
    assert call["args"]["city"] in ("Paris", "Rome")


def test_langchain_gets_structured_output(chat: Any) -> None:
    schema = {
        "title": "Animal",
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "has_legs": {"type": "boolean"}},
        "required": ["name", "has_legs"],
        "additionalProperties": False,
    }
    structured = chat.model_copy(update={"max_tokens": 60}).with_structured_output(schema, method="json_schema")
    answer = structured.invoke("Name an animal.")
    assert sorted(answer) == ["has_legs", "name"]
    assert isinstance(answer["has_legs"], bool)


@pytest.mark.parametrize("is_chat", [True, False])
def test_litellm_answers_and_streams(client: Client, server: BackgroundServer, is_chat: bool) -> None:
    litellm = client("litellm")
    options: dict[str, Any] = {"api_base": f"{server.url}/v1", "api_key": "none", "temperature": 0, "max_tokens": 8}
    if is_chat:
        messages = [{"role": "user", "content": QUESTION}]
        ask = lambda **more: litellm.completion(  # noqa: E731
            model="openai/smollm2", messages=messages, **options, **more
        )
    else:
        ask = lambda **more: litellm.text_completion(  # noqa: E731
            model="text-completion-openai/smollm2", prompt="The fish of the sea", **options, **more
        )
    answer = ask()
    text = answer.choices[0].message.content if is_chat else answer.choices[0].text
    assert text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    pieces = [
        (piece.choices[0].delta.content if is_chat else piece.choices[0].text) or ""
        for piece in ask(stream=True)
        if piece.choices
    ]
    assert "".join(pieces) == text
