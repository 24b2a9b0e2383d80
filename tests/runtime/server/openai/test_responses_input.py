"""Items of `/v1/responses` as messages, and bodies as what the engine is asked."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.runtime.server.chat.ask import ChatAsk
from ramet.runtime.server.chat.turns import joined_turns
from ramet.runtime.server.errors import ApiError
from ramet.runtime.server.openai.responses_ask import chat_ask, check_served
from ramet.runtime.server.openai.responses_input import item_messages
from ramet.runtime.server.openai.responses_schema import ResponsesBody

CALL: dict[str, Any] = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'}
MADE = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
TOOL: dict[str, Any] = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}


def part(text: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": text}


def ask_of(**fields: Any) -> ChatAsk:
    body = ResponsesBody.model_validate({"input": "Hi."} | fields)
    check_served(body)
    assert body.input is not None
    return chat_ask(body, item_messages(body.input, ()))


def test_messages() -> None:
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [part("a"), part("b")]},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [part("c", "output_text")], "status": "?"},
    ]
    assert item_messages(items, ()) == [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
    ]


def test_a_text_and_its_calls_are_one_message() -> None:
    items = [
        {"role": "assistant", "content": "Wait."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        CALL,
        {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c2", "output": [part("two")]},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
    ]
    assert joined_turns(item_messages(items, ())) == [
        {"role": "assistant", "content": "Wait.", "tool_calls": [MADE, MADE | {"id": "c2"}]},
        {"role": "tool", "tool_call_id": "c2", "name": "look", "content": "two"},
        {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "one"},
    ]


def test_a_call_may_have_been_made_in_an_earlier_response() -> None:
    output = [{"type": "function_call_output", "call_id": "c1", "output": "one"}]
    (message,) = item_messages(output, [{"role": "assistant", "content": "", "tool_calls": [MADE]}])
    assert message["name"] == "look"
    with pytest.raises(ApiError, match=r"input\[0\].call_id='c1'"):
        item_messages(output, ())


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "type"),
        ({"type": "web_search_call"}, "type"),
        ({"type": None}, "type"),
        ({"role": "narrator", "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}, "content[0].type"),
        ({"role": "user", "content": ["x"]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "content[0].text"),
        ({**CALL, "arguments": '{"a": '}, "arguments"),
        ({**CALL, "arguments": "[]"}, "arguments"),
        ({**CALL, "name": ""}, "name"),
        ({"type": "function_call_output", "output": "x"}, "call_id"),
    ],
)
def test_other_items_are_refused_by_name(item: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as caught:
        item_messages([{"role": "user", "content": "ok"}, item], ())
    assert (caught.value.status, caught.value.param) == (400, f"input[1].{field}")


def test_sampling_fields() -> None:
    ask = ask_of(
        instructions="Be kind.",
        max_output_tokens=50,
        min_tokens=40,
        temperature=0.0,
        top_p=0.5,
        seed=1,
        cache_salt="mine",
        stream=True,
        parallel_tool_calls=False,
        include=["reasoning.encrypted_content"],
    )
    sampling = ask.sampling
    assert (sampling.max_tokens, sampling.min_tokens, sampling.temperature, sampling.top_p) == (50, 40, 0.0, 0.5)
    assert (ask.cache_salt, ask.is_streamed, ask.tool_choice.is_single) == ("mine", True, True)
    assert ask.messages == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi."}]


def test_without_a_limit_the_context_is_the_limit() -> None:
    assert ask_of(min_tokens=40).sampling.max_tokens is None


def test_tools_are_in_the_form_of_a_chat() -> None:
    assert ask_of(tools=[TOOL]).tools == [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": True}}
    ]


@pytest.mark.parametrize(
    ("fields", "num_top"),
    [
        ({}, None),
        ({"top_logprobs": 0}, None),
        ({"top_logprobs": 3}, 3),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, 2),
        ({"top_logprobs": 2, "tools": [TOOL], "tool_choice": "none"}, 2),
    ],
)
def test_logprobs(fields: dict[str, Any], num_top: int | None) -> None:
    assert ask_of(**fields).sampling.logprobs == num_top


@pytest.mark.parametrize(
    ("text_format", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, '{"type": "object"}'),
        ({"type": "json_schema", "name": "n", "schema": {"type": "array"}}, '{"type": "array"}'),
    ],
)
def test_formats(text_format: dict[str, Any], schema: str | None) -> None:
    assert ask_of(text={"format": text_format, "verbosity": "low"}).sampling.json_schema == schema


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [CALL]}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}], "instructions": "Be kind."}, "input"),
        ({"background": True}, "background"),
        ({"tools": [TOOL], "top_logprobs": 3}, "top_logprobs"),
        ({"tools": [TOOL], "include": ["file_search_call.results", "message.output_text.logprobs"]}, "include"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"temperature": 1e9}, "temperature"),
        ({"max_output_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "look"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ],
)
def test_what_is_not_served_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        ask_of(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in caught.value.message
