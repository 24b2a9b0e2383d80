"""Tools through OpenAI's client: enforced, free, streamed, cut off; in the formats of several templates."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletionMessage

from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.listener import BackgroundServer

from ...chat_templates import LLAMA3, MISTRAL, QWEN
from ..conftest import Serve

pytestmark = pytest.mark.model

QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "description": "x", "parameters": PARAMETERS}}
NOOP: Any = {"type": "function", "function": {"name": "noop"}}
UNENFORCEABLE: Any = {
    "type": "function",
    "function": {"name": "odd", "parameters": {"properties": {"x": {"type": "array", "contains": {}}}}},
}


@pytest.fixture(scope="module")
def client(server: BackgroundServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def open_client(smollm2: Any) -> Iterator[openai.OpenAI]:
    """Of a server that takes templates out of requests."""
    config = ServerConfig(port=0, allow_request_template=True)
    with (
        BackgroundServer(smollm2, config) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    asked = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "max_tokens": 80, "tools": [WEATHER, NOOP]}
    return client.chat.completions.create(**{**asked, **fields})


def streamed(client: openai.OpenAI, **fields: Any) -> tuple[str, list[tuple[str, str]], str | None]:
    """Content, calls as names and arguments, and the finish reason of a streamed answer."""
    content, calls, finish = "", [], None
    for chunk in ask(client, **fields, stream=True):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for call in choice.delta.tool_calls or ():
            if call.id is not None:
                assert call.index == len(calls)
                assert len(call.id) == 9
                calls.append((call.function.name, ""))
            name, given = calls[call.index]
            calls[call.index] = (name, given + call.function.arguments)
    return content, calls, finish


def calls_of(message: ChatCompletionMessage) -> list[tuple[str, str]]:
    return [
        (call.function.name, call.function.arguments) for call in message.tool_calls or () if call.type == "function"
    ]


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=str)
def test_a_forced_call_is_made_whole_and_streamed(client: openai.OpenAI, choice: Any, temperature: float) -> None:
    fields = {"tool_choice": choice, "temperature": temperature, "seed": 4, "parallel_tool_calls": False}
    answer = ask(client, **fields).choices[0]
    ((name, given),) = calls_of(answer.message)
    assert name in ("get_weather", "noop")
    jsonschema.validate(json.loads(given), PARAMETERS if name == "get_weather" else {"maxProperties": 0})
    assert (answer.message.content, answer.finish_reason) == (None, "tool_calls")
    assert streamed(client, **fields) == ("", [(name, given)], "tool_calls")


def test_calls_in_parallel_only_where_they_may_be(client: openai.OpenAI) -> None:
    fields = {"tool_choice": "required", "tools": [WEATHER]}
    several = ask(client, **fields).choices[0]
    assert len(calls_of(several.message)) > 1
    assert len({call.id for call in several.message.tool_calls or ()}) == len(calls_of(several.message))
    assert streamed(client, **fields)[1] == calls_of(several.message)
    assert len(calls_of(ask(client, **fields, parallel_tool_calls=False).choices[0].message)) == 1


@pytest.mark.parametrize("max_tokens", [40, 44, 60, 79])
def test_calls_are_brought_to_their_end_within_max_tokens(client: openai.OpenAI, max_tokens: int) -> None:
    answer = ask(client, tool_choice="required", max_tokens=max_tokens, temperature=1, seed=max_tokens).choices[0]
    assert answer.finish_reason == "tool_calls"
    for name, given in calls_of(answer.message):
        jsonschema.validate(json.loads(given), PARAMETERS if name == "get_weather" else {"maxProperties": 0})


def test_a_call_that_does_not_fit_is_cut_off_and_says_so(client: openai.OpenAI) -> None:
    answer = ask(client, tool_choice="required", max_tokens=6).choices[0]
    assert (answer.finish_reason, answer.message.content, answer.message.tool_calls) == ("length", "", None)


def test_without_a_call_the_text_is_content(client: openai.OpenAI) -> None:
    said = ask(client, tool_choice="none", max_tokens=12).choices[0]
    free = ask(client, tool_choice="auto", max_tokens=12).choices[0]
    assert said.message.content == free.message.content  # the grammar changes nothing of a text without a call
    assert free.message.tool_calls is None
    assert streamed(client, max_tokens=12) == (free.message.content, [], free.finish_reason)


@pytest.mark.parametrize("stop", [None, "}", "a", "<", "\n"])
def test_a_call_that_the_model_begins_by_itself_is_held_to_its_schema(client: openai.OpenAI, stop: str | None) -> None:
    """No stop string cuts it. The bundled model calls nothing of its own will, so the mark's tokens are made likely."""
    begun = [*QUESTION, {"role": "assistant", "content": "Let me see.\n"}]
    mark_ids = _mark_ids(client)
    biased = {"messages": begun, "stop": stop, "logit_bias": {str(token_id): 40 for token_id in mark_ids}}
    extra = {"continue_final_message": True}
    answer = ask(client, **biased, extra_body=extra, parallel_tool_calls=False).choices[0]
    ((name, given),) = calls_of(answer.message)
    jsonschema.validate(json.loads(given), PARAMETERS if name == "get_weather" else {"maxProperties": 0})
    assert streamed(client, **biased, extra_body=extra, parallel_tool_calls=False) == (
        answer.message.content or "",
        calls_of(answer.message),
        answer.finish_reason,
    )


def _mark_ids(client: openai.OpenAI) -> list[int]:
    answer = client.completions.create(
        model="smollm2", prompt="<tool_call>", max_tokens=1, extra_body={"return_token_ids": True}
    )
    return list(answer.choices[0].model_extra["prompt_token_ids"])  # type: ignore[index]


@pytest.mark.parametrize(
    ("template", "mark"), [(QWEN, "<tool_call>"), (LLAMA3, '"parameters"')], ids=["qwen", "llama3"]
)
def test_calls_in_the_format_of_the_template(open_client: openai.OpenAI, template: str, mark: str) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "tools": [WEATHER]}
    extra = {"extra_body": {"chat_template": template, "return_token_ids": True}}
    answer = ask(open_client, **fields, **extra)
    ((name, given),) = calls_of(answer.choices[0].message)
    assert name == "get_weather"
    jsonschema.validate(json.loads(given), PARAMETERS)
    assert streamed(open_client, **fields, **extra)[1] == [(name, given)]
    text = open_client.completions.create(
        model="smollm2", prompt=answer.choices[0].token_ids, max_tokens=0, extra_body={"echo": True}
    )
    assert mark in text.choices[0].text


def test_a_template_with_calls_of_an_unknown_form(open_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="a format that is not known"):
        ask(open_client, extra_body={"chat_template": MISTRAL})


def test_a_whole_round_of_a_tool(client: openai.OpenAI) -> None:
    made = ask(client, tool_choice="required", tools=[WEATHER], parallel_tool_calls=False).choices[0].message
    (call,) = made.tool_calls or ()
    messages = [*QUESTION, made, {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 30 degrees"}]
    said = ask(client, messages=messages, tool_choice="none").choices[0].message.content
    assert said


def test_schemas_that_cannot_be_enforced(client: openai.OpenAI) -> None:
    assert ask(client, tools=[WEATHER, UNENFORCEABLE], max_tokens=3).choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, tools=[WEATHER, UNENFORCEABLE], tool_choice="required")
    assert refused.value.param == "tools[1].function.parameters"
    strict = {"type": "function", "function": {**UNENFORCEABLE["function"], "strict": True}}
    with pytest.raises(openai.BadRequestError, match="contains"):
        ask(client, tools=[WEATHER, strict])
    odd_type = {"type": "function", "function": {"name": "text", "parameters": {"type": "string"}}}
    with pytest.raises(openai.BadRequestError, match="must be 'object'") as refused:
        ask(client, tools=[odd_type])
    assert refused.value.param == "tools[0].function.parameters.type"
    named = {"type": "function", "function": {"name": "get_weather"}}
    assert ask(client, tools=[WEATHER, UNENFORCEABLE], tool_choice=named).choices[0].finish_reason == "tool_calls"


def test_an_answer_names_the_tools_whose_schemas_are_not_enforced(client: openai.OpenAI) -> None:
    fields = {"tools": [WEATHER, UNENFORCEABLE], "max_tokens": 2}
    assert ask(client, **fields).choices[0].ramet["unenforced_tools"] == ["odd"]
    *_, last = ask(client, **fields, stream=True)
    assert last.choices[0].ramet["unenforced_tools"] == ["odd"]
    assert "unenforced_tools" not in ask(client, tools=[WEATHER], max_tokens=2).choices[0].ramet


RACE = {"properties": {"kind": {"const": "race"}, "metres": {"enum": [100, 200]}}, "required": ["kind", "metres"]}
JUMP = {"properties": {"kind": {"const": "jump"}, "high": {"type": "boolean"}}, "required": ["kind", "high"]}
BRANCHED: dict[str, dict[str, Any]] = {
    "anyOf": {"anyOf": [RACE, JUMP]},
    "oneOf": {"type": "object", "oneOf": [RACE, JUMP]},
    "allOf": {"allOf": [JUMP, {"properties": {"high": {"const": True}}}]},
    "ref": {"$ref": "#/$defs/race", "$defs": {"race": {"type": "object", **RACE}}},
    "old_ref": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/race",
        "definitions": {"race": {"type": "object", **RACE}},
    },
    "required": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
}


@pytest.mark.parametrize("name", BRANCHED)
@pytest.mark.parametrize("choice", ["required", "do"])
def test_schemas_with_branches_are_enforced(client: openai.OpenAI, name: str, choice: str) -> None:
    tool: Any = {"type": "function", "function": {"name": "do", "parameters": BRANCHED[name]}}
    chosen: Any = choice if choice == "required" else {"type": "function", "function": {"name": "do"}}
    fields = {"tools": [tool], "tool_choice": chosen, "parallel_tool_calls": False, "temperature": 1.5, "seed": 4}
    answer = ask(client, **fields).choices[0]
    ((_, given),) = calls_of(answer.message)
    jsonschema.validate(json.loads(given), BRANCHED[name])
    assert json.loads(given).keys() <= {"kind", "metres", "high", "a", "b"}
    assert "unenforced_tools" not in answer.ramet


def test_an_answer_is_a_call_or_of_the_response_format(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for seed in range(3):
        answer = ask(client, response_format=wanted, temperature=2, seed=seed, parallel_tool_calls=False).choices[0]
        if answer.finish_reason == "tool_calls":
            assert answer.message.content is None
        else:
            assert answer.message.content == '{"a": 1}'
    with pytest.raises(openai.BadRequestError, match="leave out the other constraint"):
        ask(client, extra_body={"guided_regex": "a"})


def test_logprobs_of_calls_are_given_too(client: openai.OpenAI) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "logprobs": True}
    answer = ask(client, **fields)
    listed = [entry.token for entry in answer.choices[0].logprobs.content]
    assert "".join(listed).startswith('<tool_call>\n{"name": "')
    chunks = [chunk.choices[0] for chunk in ask(client, **fields, stream=True)]
    assert [entry.token for choice in chunks if choice.logprobs for entry in choice.logprobs.content] == listed
    assert "".join(choice.delta.content or "" for choice in chunks) == ""


def test_functions_of_tools_that_are_odd(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": 'a "b"\\é', "parameters": None}}
    ((name, given),) = calls_of(
        ask(client, tools=[tool], tool_choice="required", parallel_tool_calls=False).choices[0].message
    )
    assert (name, given) == ('a "b"\\é', "{}")


# Ends


def test_a_stream_that_fails_in_its_middle_says_so(serve: Serve) -> None:
    server = serve()
    body = {"messages": QUESTION, "max_tokens": 400, "ignore_eos": True, "stream": True, "rid": "mine"}
    with httpx2.Client(base_url=server.url, timeout=60) as http:
        with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            assert http.post("/v1/chat/completions", json={**body, "stream": False}).status_code == 409
            server.service.abort("anybody", "mine")
            *_, failure, done = [line for line in lines if line]
        assert json.loads(failure.removeprefix("data: "))["error"]["code"] == "request_aborted"
        assert done == "data: [DONE]"


@pytest.mark.parametrize("num_lines", [0, 1, 5])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_who_leaves_a_stream_holds_nothing_any_more(serve: Serve, path: str, num_lines: int) -> None:
    server = serve()
    body = {"messages": QUESTION, "prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 2}
    with httpx2.Client(base_url=server.url, timeout=60) as http, http.stream("POST", path, json=body) as answer:
        for _, _line in zip(range(num_lines), answer.iter_lines(), strict=False):
            pass
    deadline = time.monotonic() + 30
    while server.service.admission.num_live and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.service.admission.num_live == 0
