"""Bodies of `/v1/messages` as what the engine is asked."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.runtime.server.anthropic.ask import chat_ask, prompt_ask
from ramet.runtime.server.anthropic.schema import CountTokensBody, MessagesBody
from ramet.runtime.server.chat.ask import ChatAsk, ToolChoice
from ramet.runtime.server.errors import ApiError

BODY: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi."}]}
TOOL: dict[str, Any] = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}


def ask_of(**fields: Any) -> ChatAsk:
    return chat_ask(MessagesBody.model_validate(BODY | fields))


def test_sampling_fields() -> None:
    ask = ask_of(
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        seed=3,
        stop_sequences=["a", "b"],
        ignore_eos=True,
        cache_salt="mine",
        priority=2,
        rid="mine too",
        regex="a+",
        stream=True,
        unknown="field",
    )
    sampling = ask.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (5, 0.5, 0.9, 7)
    assert (sampling.min_p, sampling.seed, sampling.stop, sampling.ignore_eos) == (0.1, 3, ("a", "b"), True)
    assert (ask.cache_salt, ask.priority, ask.rid, ask.is_streamed) == ("mine", 2, "mine too", True)
    assert (sampling.regex, ask.continues_last) == ("a+", False)


def test_a_strict_tool_stays_strict() -> None:
    assert [tool["function"].get("strict") for tool in ask_of(tools=[{**TOOL, "strict": True}, TOOL]).tools] == [
        True,
        None,
    ]


def test_defaults_are_those_of_sampling_params() -> None:
    ask = ask_of()
    assert (ask.sampling.temperature, ask.sampling.stop, ask.sampling.json_schema) == (1.0, (), None)
    assert (ask.tools, ask.tool_choice, ask.is_streamed) == ([], ToolChoice(), False)


def test_tools_are_in_openai_s_form() -> None:
    ask = ask_of(tools=[TOOL], tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True})
    function = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    assert ask.tools == [{"type": "function", "function": function}]
    assert ask.tool_choice == ToolChoice.of("look")


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice("required", is_single=True)),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "tool", "name": "any"}, ToolChoice("required", ("any",), is_single=True)),
    ],
)
def test_tool_choices(given: dict[str, Any], choice: ToolChoice) -> None:
    assert ask_of(tools=[TOOL], tool_choice=given).tool_choice == choice


def test_a_schema_constrains_the_text() -> None:
    output_config = {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert ask_of(output_config=output_config).sampling.json_schema == '{"type": "object"}'


def test_an_answer_that_was_begun_is_continued() -> None:
    messages = [*BODY["messages"], {"role": "assistant", "content": "Well,"}]
    assert ask_of(messages=messages).continues_last


@pytest.mark.parametrize("kind", ["adaptive", "disabled"])
def test_thinking_that_is_left_to_the_model_is_accepted(kind: str) -> None:
    assert ask_of(thinking={"type": kind}) == ask_of()


def test_no_tokens_ask_for_the_prompt_alone() -> None:
    """With its tools, which belong to it, but with nothing that forces a call."""
    ask = ask_of(max_tokens=0, tools=[TOOL], tool_choice={"type": "any"})
    assert (ask.sampling.max_tokens, ask.sampling.temperature, ask.tool_choice) == (1, 0.0, ToolChoice())
    assert len(ask.tools) == 1


def test_tokens_are_counted_of_the_same_prompt() -> None:
    fields = BODY | {"system": "Be kind.", "tools": [TOOL]}
    counted = prompt_ask(CountTokensBody.model_validate(fields))
    asked = chat_ask(MessagesBody.model_validate(fields))
    assert (counted.messages, counted.tools, counted.tool_choice) == (asked.messages, asked.tools, asked.tool_choice)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"seed": -1}, "seed"),
        ({"on_incomplete": "raise"}, "on_incomplete"),
        ({"choices": []}, "choices"),
        (
            {"regex": "a", "output_config": {"format": {"type": "json_schema", "schema": {}}}},
            "output_config.format.schema",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.type"),
        ({"mcp_servers": [{"type": "url", "url": "http://x"}]}, "mcp_servers"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp_toolset"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"name": "x"}]}, "tools[1].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}
                ]
            },
            "messages",
        ),
    ],
)
def test_what_is_not_served_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        ask_of(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in caught.value.message
