"""`tool_choice` of chat completions and of responses: read, and held to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from ramet.runtime.server.chat.ask import ToolChoice
from ramet.runtime.server.errors import ApiError
from ramet.runtime.server.listener import BackgroundServer
from ramet.runtime.server.openai.tool_choice import tool_choice

Json = dict[str, Any]


def chat_tool(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


def response_tool(name: str) -> Json:
    return {"type": "function", "name": name}


def chat_allowed(mode: str, *names: str) -> Json:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [chat_tool(name) for name in names]}}


def response_allowed(mode: str, *names: str) -> Json:
    return {"type": "allowed_tools", "mode": mode, "tools": [response_tool(name) for name in names]}


@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.parametrize(
    ("in_chat", "in_response", "mode", "names"),
    [
        (None, None, "auto", None),
        ("none", "none", "none", None),
        ("required", "required", "required", None),
        (chat_allowed("auto", "f"), response_allowed("auto", "f"), "auto", ("f",)),
        (chat_allowed("required", "f", "g"), response_allowed("required", "f", "g"), "required", ("f", "g")),
        (chat_allowed("auto"), response_allowed("auto"), "auto", ()),
    ],
)
def test_both_forms_mean_the_same(
    in_chat: Any, in_response: Any, mode: Any, names: tuple[str, ...] | None, is_single: bool
) -> None:
    expected = ToolChoice(mode, names, is_single)
    assert tool_choice(in_chat, is_nested=True, is_single=is_single) == expected
    assert tool_choice(in_response, is_nested=False, is_single=is_single) == expected


@pytest.mark.parametrize("name", ["f", "auto", "required"])
def test_a_tool_that_is_named_is_called_once_whatever_its_name(name: str) -> None:
    expected = ToolChoice("required", (name,), is_single=True)
    assert tool_choice(chat_tool(name), is_nested=True, is_single=False) == expected
    assert tool_choice(response_tool(name), is_nested=False, is_single=False) == expected


@pytest.mark.parametrize(
    ("given", "is_nested", "param"),
    [
        ("sometimes", True, ""),
        (3, True, ""),
        ({"type": "web_search"}, False, ""),
        ({"type": "function", "name": "f"}, True, ".function.name"),
        ({"type": "function", "function": {"name": "f"}}, False, ".name"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, True, ".allowed_tools.tools"),
        ({"type": "allowed_tools", "tools": []}, False, ".mode"),
        ({"type": "allowed_tools", "mode": "none", "tools": []}, False, ".mode"),
        ({"type": "allowed_tools", "mode": "auto", "tools": "f"}, False, ".tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": ["f"]}, False, ".tools[0].type"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}, False, ".tools[0].type"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]}, False, ".tools[0].name"),
    ],
)
def test_other_forms_are_refused_by_name(given: Any, is_nested: bool, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        tool_choice(given, is_nested=is_nested, is_single=False)
    assert (caught.value.status, caught.value.param) == (400, f"tool_choice{param}")


# Through the clients

NAMES = ("look", "listen", "wait")
NO_ARGUMENTS: Json = {"type": "object", "properties": {}, "additionalProperties": False}
UNENFORCEABLE: Json = {"type": "object", "properties": {"x": {"type": "array", "contains": {}}}}


@pytest.fixture
def client(server: BackgroundServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    tools: list[Any] = [
        {"type": "function", "function": {"name": name, "parameters": NO_ARGUMENTS, "strict": True}} for name in NAMES
    ]
    messages = [{"role": "user", "content": "Look!"}]
    asked: Json = {"messages": messages, "tools": tools, "temperature": 1.5, "max_tokens": 60}
    return client.chat.completions.create(model="smollm2", **asked | fields)


def respond(client: openai.OpenAI, **fields: Any) -> Any:
    tools: list[Any] = [
        {"type": "function", "name": name, "parameters": NO_ARGUMENTS, "strict": True} for name in NAMES
    ]
    asked: Json = {"input": "Look!", "tools": tools, "temperature": 1.5}
    return client.responses.create(model="smollm2", max_output_tokens=60, **asked | fields)


@pytest.mark.model
@pytest.mark.parametrize("seed", range(4))
def test_only_allowed_tools_are_called(client: openai.OpenAI, seed: int) -> None:
    extra = {"seed": seed}
    answer = chat(client, tool_choice=chat_allowed("required", "listen", "wait"), extra_body=extra)
    called = {call.function.name for call in answer.choices[0].message.tool_calls}
    response = respond(client, tool_choice=response_allowed("required", "listen", "wait"), extra_body=extra)
    called |= {item.name for item in response.output}
    assert called <= {"listen", "wait"}


@pytest.mark.model
def test_the_prompt_has_all_tools_whichever_are_allowed(client: openai.OpenAI) -> None:
    """So that the cache serves all choices."""
    choices: list[Any] = [
        "none",
        "auto",
        "required",
        chat_tool("wait"),
        chat_allowed("auto", "look"),
        chat_allowed("auto"),
    ]
    prompts = [chat(client, tool_choice=choice, extra_body={"return_token_ids": True}) for choice in choices]
    assert len({tuple(answer.prompt_token_ids) for answer in prompts}) == 1


@pytest.mark.model
def test_where_no_tool_is_allowed_none_is_called(client: openai.OpenAI) -> None:
    (choice,) = chat(client, tool_choice=chat_allowed("auto"), temperature=0, max_tokens=5).choices
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "length")
    with pytest.raises(openai.BadRequestError, match="no tools to be called") as refused:
        chat(client, tool_choice=chat_allowed("required"))
    assert refused.value.param == "tool_choice"


@pytest.mark.model
def test_schemas_of_tools_that_are_not_allowed_do_not_matter(client: openai.OpenAI) -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": UNENFORCEABLE}}
    fine = {"type": "function", "function": {"name": "look", "parameters": NO_ARGUMENTS}}
    answer = chat(client, tools=[odd, fine], tool_choice=chat_allowed("required", "look"))
    assert {call.function.name for call in answer.choices[0].message.tool_calls} == {"look"}
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, tools=[fine, odd], tool_choice=chat_allowed("required", "odd"))
    assert refused.value.param == "tools[1].function.parameters"


@pytest.mark.model
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"tool_choice": chat_tool("run")}),
        ("/v1/chat/completions", {"tool_choice": chat_allowed("auto", "look", "run")}),
        ("/v1/chat/completions", {"tool_choice": "required", "tools": []}),
        ("/v1/responses", {"tool_choice": response_tool("run")}),
        ("/v1/responses", {"tool_choice": response_allowed("auto", "run")}),
        ("/v1/responses", {"tool_choice": "required", "tools": []}),
        ("/v1/messages", {"tool_choice": {"type": "tool", "name": "run"}}),
        ("/v1/messages", {"tool_choice": {"type": "any"}, "tools": []}),
        ("/v1/messages/count_tokens", {"tool_choice": {"type": "tool", "name": "run"}}),
    ],
)
def test_what_is_chosen_must_be_there(http: httpx2.Client, path: str, fields: Json) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tools: dict[str, list[Json]] = {
        "/v1/chat/completions": [chat_tool("look")],
        "/v1/responses": [response_tool("look")],
        "/v1/messages": [{"name": "look", "input_schema": NO_ARGUMENTS}],
        "/v1/messages/count_tokens": [{"name": "look", "input_schema": NO_ARGUMENTS}],
    }
    most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    asked = {"model": "smollm2", "messages": messages, "input": "hi", most: 5, "tools": tools[path], **fields}
    answer = http.post(path, json=asked)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith("tool_choice")
