"""Tools are checked before anything is rendered or compiled."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.runtime.server.chat.ask import ChatAsk, ToolChoice
from ramet.runtime.server.chat.tools import MAX_TOOLS, check_tools, function_tool
from ramet.runtime.server.errors import ApiError
from ramet.sampling_params import SamplingParams

F: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
G: dict[str, Any] = {"type": "function", "function": {"name": "g", "parameters": {"type": ["object", "null"]}}}


def ask_with(*tools: Any, choice: ToolChoice = ToolChoice(), **sampling: Any) -> ChatAsk:  # noqa: B008
    return ChatAsk(messages=[], sampling=SamplingParams(**sampling), tools=tools, tool_choice=choice)


def named(name: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (ToolChoice(), ["f", "g"]),
        (ToolChoice("none"), []),
        (ToolChoice("required"), ["f", "g"]),
        (ToolChoice.of("g"), ["g"]),
        (ToolChoice("auto", ()), []),
    ],
)
def test_which_may_be_called(choice: ToolChoice, names: list[str]) -> None:
    ask = ask_with(F, G, choice=choice)
    check_tools(ask)
    assert [(("f", "g")[idx], function["name"]) for idx, function in ask.callable_tools] == [(n, n) for n in names]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "function"}], "tools[0].function.name"),
        ([{"type": "function", "function": "f"}], "tools[0].function.name"),
        ([F, named("")], "tools[1].function.name"),
        ([F, named(3)], "tools[1].function.name"),
        ([F, G, F], "tools[2].function.name"),
        ([named("f", parameters=[])], "tools[0].function.parameters"),
        ([named("f", parameters={"type": "string"})], "tools[0].function.parameters.type"),
        ([named(f"f{idx}") for idx in range(MAX_TOOLS + 1)], "tools"),
    ],
)
def test_malformed_ones_are_refused_by_name(tools: list[Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_tools(ask_with(*tools))
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("tools", "choice"), [([F], ToolChoice.of("h")), ([], ToolChoice("required")), ([F], ToolChoice("required", ()))]
)
def test_what_is_chosen_must_be_there(tools: list[Any], choice: ToolChoice) -> None:
    with pytest.raises(ApiError) as caught:
        check_tools(ask_with(*tools, choice=choice))
    assert (caught.value.status, caught.value.param) == (400, "tool_choice")


def test_a_text_has_one_constraint() -> None:
    with pytest.raises(ApiError, match="leave out the other constraint"):
        check_tools(ask_with(F, regex="a"))
    check_tools(ask_with(F, json_schema={"type": "object"}))
    check_tools(ask_with(F, regex="a", choice=ToolChoice("none")))
    check_tools(ask_with(F, regex="a", choice=ToolChoice("auto", ())))


def test_a_tool_is_a_function() -> None:
    assert function_tool(0, {"function": {"name": "f"}, "strict": True}) == F
    with pytest.raises(ApiError, match=r"tools\[3\]\.type='web_search' is not supported"):
        function_tool(3, {"type": "web_search"})
