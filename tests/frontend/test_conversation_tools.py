"""Conversations with tools: calls by grammar or read from the text, and the loop that answers them."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest

from ramet import Conversation, InvalidProgramError, ToolCallError
from ramet.frontend.chat.tool_schema import function_schema

from ..runtime.chat_templates import LLAMA3, MISTRAL, QWEN, SMOLLM2
from .tool_chats import ROME, Place, TemplateBackend, add, calls_of, check_that_tokens_only_grow, weather


@pytest.mark.parametrize(
    ("source", "name"), [(QWEN, "hermes"), (LLAMA3, "llama3"), (SMOLLM2, "hermes")], ids=["qwen", "llama3", "smollm2"]
)
def test_tools_are_called_and_their_results_answered(source: str, name: str) -> None:
    replies = [calls_of(("weather", {"city": "Rome"}), name=name), "Sunny.", "Bye."]
    backend = TemplateBackend(source, replies)
    chat = Conversation(tools=[weather], backend=backend)
    reply = chat.ask("Rome?")
    (call,) = reply.tool_calls
    assert (reply.text, call.name, call.arguments, reply.tool_error) == ("", "weather", {"city": "Rome"}, None)
    assert chat.open_tool_calls == [call]
    assert chat.run_tools().text == "Sunny."
    assert chat.messages[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call.to_message()]},
        {"role": "tool", "tool_call_id": "call00000", "name": "weather", "content": "Sunny in Rome for 1 days"},
        {"role": "assistant", "content": "Sunny."},
    ]
    chat.ask("Thanks")
    check_that_tokens_only_grow(backend)
    prompt = backend.requests[-1].prompt
    assert "Tells the weather." in prompt
    assert replies[0] in prompt
    assert "Sunny in Rome" in prompt
    again = Conversation(tools=[weather], backend=backend, messages=chat.messages[:-2])
    whole = [*chat.explain_prompt().token_ids][: again.num_tokens]
    assert list(again.explain_prompt().token_ids) == whole


def test_a_template_that_takes_no_stand_in_goes_on_from_the_same_text() -> None:
    """Mistral's counts its users and assistants, and leaves out those with tool calls."""
    call = '[{"name": "weather", "arguments": {"city": "Rome"}}]'
    backend = TemplateBackend(MISTRAL, [call, "Sunny.", "Bye."])
    chat = Conversation(tools=[weather], backend=backend, tool_format="json")
    chat.ask("Rome?")
    assert chat.run_tools().text == "Sunny."
    chat.ask("Thanks")
    assert "[TOOL_RESULTS]" in backend.requests[1].prompt
    assert backend.requests[2].num_cached_tokens > len(backend.requests[1].call.prompt_token_ids)


def test_several_calls_of_one_answer_are_run_in_order() -> None:
    both = calls_of(("add", {"a": 1, "b": 2}), ("weather", {"city": "Rome", "days": 3}))
    backend = TemplateBackend(QWEN, [f"Let me see.\n{both}", "3 and sunny"])
    chat = Conversation(tools=[weather, add], backend=backend, max_tokens=1000)
    reply = chat.ask("?")
    assert (reply.text, [call.call_id for call in reply.tool_calls]) == ("Let me see.", ["call00000", "call00001"])
    chat.run_tools()
    assert [message["content"] for message in chat.messages[2:4]] == ["3", "Sunny in Rome for 3 days"]
    check_that_tokens_only_grow(backend)


def test_a_required_call_is_a_call_whatever_the_model_would_say() -> None:
    arguments = {"name": "weather", "arguments": {"city": "Rome", "days": 1}}
    backend = TemplateBackend(QWEN, [json.dumps(arguments), "ok"])
    chat = Conversation(tools=[weather, add], backend=backend)
    reply = chat.ask("Rome?", tool_choice="weather")
    assert reply.tool_calls[0].arguments == arguments["arguments"]
    request = backend.requests[0]
    assert request.prompt.endswith("<|im_start|>assistant\n<tool_call>\n")
    schema = json.loads(request.call.sampling_params.json_schema)  # type: ignore[union-attr, arg-type]
    assert schema["properties"]["name"] == {"const": "weather"}
    assert schema["$defs"]["tool0"]["required"] == ["city"]
    assert schema["$defs"]["tool0"]["additionalProperties"] is False
    chat.run_tools()
    assert backend.requests[1].prompt.startswith(f"{request.prompt}{json.dumps(arguments)}\n</tool_call><|im_end|>\n")
    check_that_tokens_only_grow(backend)


@pytest.mark.parametrize(
    "choice", ["weather", {"type": "function", "function": {"name": "weather"}}, {"name": "weather"}]
)
def test_a_tool_may_be_named_as_openai_does(choice: object) -> None:
    backend = TemplateBackend(QWEN, ['{"name": "weather", "arguments": {"city": "Rome"}}'])
    reply = Conversation(tools=[weather, add], backend=backend).ask("?", tool_choice=choice)
    assert reply.tool_calls[0].name == "weather"


def test_without_a_choice_of_tools_a_text_is_a_text() -> None:
    backend = TemplateBackend(QWEN, [ROME, "plain"])
    chat = Conversation(tools=[weather], backend=backend)
    reply = chat.ask("?", tool_choice="none")
    assert (reply.text, reply.tool_calls) == (ROME, ())
    assert chat.ask("?").tool_calls == ()
    assert chat.run_tools() is chat.last_reply


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call>\n{nonsense", "must be JSON, but the model wrote"),
        ('<tool_call>{"name": 3}</tool_call>', 'a tool call is {"name": ..., "arguments"'),
        ('<tool_call>{"name": "weather", "arguments": 3}</tool_call>', "a tool call is"),
        ('<tool_call>{"name": "fly", "arguments": {}}</tool_call>', "'fly', which is no tool; there are: weather"),
    ],
)
def test_a_call_that_cannot_be_read_is_kept_as_text_and_said(text: str, reason: str) -> None:
    chat = Conversation(tools=[weather], backend=TemplateBackend(QWEN, [text]))
    reply = chat.ask("?")
    assert (reply.text, reply.tool_calls) == (text, ())
    assert reply.tool_error is not None
    assert reason in reply.tool_error
    with pytest.raises(ToolCallError):
        chat.run_tools()


def test_a_call_that_was_cut_off_says_so() -> None:
    reply = Conversation(tools=[weather], backend=TemplateBackend(QWEN, [ROME])).ask("?", max_tokens=30)
    assert reply.tool_error is not None
    assert reply.tool_error.endswith("max_tokens=30 cut it off")


def test_a_tool_that_raises_is_raised_or_told() -> None:
    lost = calls_of(("add", {"a": 1, "b": 2}), ("weather", {"city": "Atlantis"}))
    backend = TemplateBackend(QWEN, [lost, "Sorry."])
    chat = Conversation(tools=[weather, add], backend=backend, max_tokens=1000)
    chat.ask("?")
    with pytest.raises(LookupError, match="no such city"):
        chat.run_tools()
    assert [call.name for call in chat.open_tool_calls] == ["weather"]
    with pytest.raises(InvalidProgramError, match="tool calls without a result"):
        chat.ask("Go on")
    assert chat.run_tools(on_tool_error="return").text == "Sorry."
    assert chat.messages[3]["content"] == "Error: LookupError: no such city"
    with pytest.raises(InvalidProgramError, match="on_tool_error"):
        Conversation(tools=[add], backend=TemplateBackend(QWEN, [lost])).run_tools(on_tool_error="hide")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments", [{"town": "Rome"}, {"city": "Rome", "hour": 1}, {}], ids=["other", "too many", "missing"]
)
def test_wrong_arguments_are_an_error_of_the_call(arguments: dict[str, Any]) -> None:
    chat = Conversation(tools=[weather], backend=TemplateBackend(QWEN, [calls_of(("weather", arguments))]))
    chat.ask("?")
    with pytest.raises(ToolCallError, match="weather does not take the arguments"):
        chat.run_tools()


def test_rounds_are_bounded() -> None:
    chat = Conversation(tools=[weather], backend=TemplateBackend(QWEN, lambda call, prompt: ROME))
    with pytest.raises(InvalidProgramError, match="no reply yet"):
        chat.run_tools()
    chat.ask("?")
    with pytest.raises(ToolCallError, match="after 3 rounds"):
        chat.run_tools(max_rounds=3)
    assert chat.messages[-1]["tool_calls"][0]["id"] == "call00003"


def test_tools_given_as_schemas_are_answered_by_hand() -> None:
    schema = function_schema(weather)
    for tool in (schema, schema["function"]):
        chat = Conversation(tools=[tool], backend=TemplateBackend(QWEN, [ROME, "ok"]))
        (call,) = chat.ask("?").tool_calls
        with pytest.raises(ToolCallError, match="was given as a schema"):
            chat.run_tools()
        chat.add_tool_result(call, {"degrees": 30})
        assert chat.messages[-1]["content"] == '{"degrees": 30}'
        with pytest.raises(InvalidProgramError, match="no open tool call"):
            chat.add_tool_result(call, "again")
        assert chat.ask().text == "ok"


def test_a_result_must_be_text_or_json() -> None:
    def strange() -> object:
        return object()

    chat = Conversation(tools=[strange], backend=TemplateBackend(QWEN, [calls_of(("strange", {}))]))
    chat.ask("?")
    with pytest.raises(ToolCallError, match="neither a text nor JSON"):
        chat.run_tools()


def test_tools_may_be_coroutines() -> None:
    async def slow(city: str) -> str:
        await asyncio.sleep(0)
        return f"{city} at last"

    replies = [calls_of(("slow", {"city": "Rome"})), "ok"]
    chat = Conversation(tools=[slow], backend=TemplateBackend(QWEN, replies))

    async def talk() -> str:
        await chat.aask("?")
        return (await chat.arun_tools()).text

    assert asyncio.run(talk()) == "ok"
    assert chat.messages[2]["content"] == "Rome at last"
    chat = Conversation(tools=[slow], backend=TemplateBackend(QWEN, replies))
    chat.ask("?")
    with pytest.raises(ToolCallError, match="await arun_tools"):
        chat.run_tools()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tool_choice": "fly"}, "must be one of auto, none, required, weather"),
        ({"tool_choice": 3}, "tool_choice=3"),
        ({"tool_choice": "required", "regex": "a"}, "regex is not allowed with tool_choice='required'"),
    ],
)
def test_bad_tool_choices_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidProgramError, match=reason):
        Conversation(tools=[weather], backend=TemplateBackend(QWEN)).ask("?", **options)


@pytest.mark.model
def test_required_calls_on_the_bundled_model(backend: Any) -> None:
    """Whatever the model is like: the call is one, its references resolve, and the cache follows."""
    booked: list[tuple[str, int]] = []

    def reserve(place: Place, nights: Literal[1, 2, 3]) -> str:
        """Reserve a room."""
        booked.append((place.city, nights))
        return "done"

    chat = Conversation(tools=[reserve, add], backend=backend, temperature=0, max_tokens=64)
    reply = chat.ask("Two nights in Rome, please.", tool_choice="reserve")
    assert reply.tool_error is None
    assert [call.name for call in reply.tool_calls] == ["reserve"]
    final = chat.run_tools(tool_choice="none", max_tokens=8)
    assert len(booked) == 1
    assert final.meta is not None
    assert reply.meta is not None
    assert final.meta.num_cached_tokens >= reply.meta.num_prompt_tokens + reply.meta.num_generated_tokens - 2
    assert chat.ask("What is 2 + 3?", tool_choice="required").tool_calls
