"""`/v1/chat/completions` through OpenAI's own client, and by hand where that cannot send it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from pydantic import BaseModel

from ramet import LLM, SamplingParams
from ramet.runtime.server.listener import BackgroundServer

from ..conftest import Serve

pytestmark = pytest.mark.model

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of Italy?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NOOP: dict[str, Any] = {"type": "function", "function": {"name": "noop"}}


class City(BaseModel):
    name: str
    is_old: bool


@pytest.fixture(scope="module")
def client(server: BackgroundServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def post(http: httpx2.Client, **fields: Any) -> httpx2.Response:
    body = {"messages": QUESTION, "max_tokens": 4, "temperature": 0, **fields}
    return http.post("/v1/chat/completions", json=body)


def events_of(answer: httpx2.Response) -> list[Any]:
    """The events of a stream, which ends properly."""
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


# Answers


def test_an_answer_is_what_the_engine_says(client: openai.OpenAI, smollm2: LLM) -> None:
    params = SamplingParams(max_tokens=12, temperature=0, logprobs=2)
    (expected,) = smollm2.chat(QUESTION, params)
    for _ in range(2):  # whatever the cache holds
        answer = client.chat.completions.create(
            model="smollm2", messages=QUESTION, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2
        )
        (choice,) = answer.choices
        (sample,) = expected.outputs
        assert (choice.message.content, choice.message.role, choice.message.tool_calls) == (
            sample.text,
            "assistant",
            None,
        )
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert sample.logprobs is not None
        ids = sample.token_ids[: len(sample.token_ids) - sample.has_stop_token]
        assert [entry.logprob for entry in choice.logprobs.content] == [
            listed[token_id].logprob for token_id, listed in zip(ids, sample.logprobs, strict=False)
        ]
        assert b"".join(bytes(entry.bytes or ()) for entry in choice.logprobs.content).decode() == sample.text
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
        assert all(entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob for entry in choice.logprobs.content)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
        assert answer.usage.completion_tokens == len(sample.token_ids)
        assert answer.id.startswith("chatcmpl-")
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_stream_says_the_same_as_a_whole_answer(client: openai.OpenAI, seed: int) -> None:
    asked: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Write emojis: 😀🎉 café 日本"}],
        "max_tokens": 30,
        "seed": seed,
        "temperature": 1.5,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 1,
    }
    whole = client.chat.completions.create(**asked)
    texts, finishes, logprobs, usages = ["", ""], [None, None], [[], []], []  # type: ignore[var-annotated]
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usages.append(chunk.usage)
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finishes[choice.index] = choice.finish_reason or finishes[choice.index]
            if choice.logprobs is not None:
                logprobs[choice.index] += choice.logprobs.content or []
    assert texts == [choice.message.content for choice in whole.choices]
    assert finishes == [choice.finish_reason for choice in whole.choices]
    assert logprobs == [choice.logprobs.content for choice in whole.choices if choice.logprobs]
    assert usages[:-1] == [None] * (len(usages) - 1)
    assert whole.usage is not None
    assert usages[-1].completion_tokens == whole.usage.completion_tokens


def test_a_stream_in_openais_form(http: httpx2.Client) -> None:
    answer = post(http, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, *middle, last = events_of(answer)
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in (first, *middle))
    assert "usage" not in last
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] in ("stop", "length")
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in (first, *middle, last)}) == 1


def test_running_usage_counts_up(http: httpx2.Client) -> None:
    chunks = events_of(post(http, stream=True, stream_options={"continuous_usage_stats": True}))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 4)


def test_the_asynchronous_client(server: BackgroundServer) -> None:
    async def ask(client: openai.AsyncOpenAI, name: str) -> str | None:
        answer = await client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": f"Say {name}"}], max_tokens=5, temperature=0
        )
        return answer.choices[0].message.content

    async def ask_all() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, name) for name in ("one", "two", "one")))

    first, _, third = asyncio.run(ask_all())
    assert first == third


def test_finish_reasons_are_openais_and_ours_are_beside_them(http: httpx2.Client) -> None:
    def ending(**fields: Any) -> tuple[str, object, str]:
        choice = post(http, **fields).json()["choices"][0]
        return choice["finish_reason"], choice["stop_reason"], choice["ramet"]["finish_reason"]

    assert ending(max_tokens=2) == ("length", None, "length")
    assert ending(max_tokens=60) == ("stop", None, "stop")
    assert ending(stop="capital") == ("stop", "capital", "stop")
    assert ending(max_tokens=60, ignore_eos=True)[0] == "length"


@pytest.mark.parametrize("stop", ["Rome", " is Rome", ["of It", "zzz"], "."])
def test_no_part_of_a_stop_string_is_shown(http: httpx2.Client, smollm2: LLM, stop: Any) -> None:
    (whole,) = smollm2.chat(QUESTION, SamplingParams(max_tokens=30, temperature=0))
    text = whole.outputs[0].text
    first = min(text.find(one) for one in ([stop] if isinstance(stop, str) else stop) if one in text)
    shown = ""
    for chunk in events_of(post(http, stop=stop, max_tokens=30, stream=True)):
        shown += chunk["choices"][0]["delta"].get("content", "")
        assert text[:first].startswith(shown)
    assert shown == text[:first]


# Messages


@pytest.mark.parametrize("arguments", ['{"city": "Rome", "days": 2}', {"city": "Rome", "days": 2}])
@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}, {"content": []}], ids=str)
def test_calls_in_messages_come_in_many_forms(http: httpx2.Client, arguments: Any, content: dict[str, Any]) -> None:
    def ask(call: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
        messages = [
            *QUESTION,
            {"role": "assistant", **said, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Sunny"}]},
        ]
        answer = post(http, messages=messages, tools=[WEATHER], return_token_ids=True)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    function = {"name": "get_weather", "arguments": arguments}
    plain = {"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}
    usual = ask({"id": "c1", "type": "function", "function": plain}, {"content": ""})
    assert (
        ask({"id": "c1", "type": "function", "function": function}, content)["prompt_token_ids"]
        == (usual["prompt_token_ids"])
    )


def test_parts_developers_and_users_who_write_special_tokens(http: httpx2.Client, smollm2: LLM) -> None:
    def prompt(*messages: dict[str, Any]) -> list[int]:
        return list(post(http, messages=messages, return_token_ids=True).json()["prompt_token_ids"])

    plain = prompt({"role": "system", "content": "Be brief"}, {"role": "user", "content": "a\nb"})
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert prompt({"role": "developer", "content": "Be brief"}, {"role": "user", "content": parts}) == plain
    end = smollm2.tokenizer.token_to_id("<|im_end|>")
    assert prompt({"role": "user", "content": "x<|im_end|>"}).count(end or -1) == prompt(
        {"role": "user", "content": "x"}
    ).count(end or -1)


def test_a_last_message_is_gone_on_with(http: httpx2.Client, smollm2: LLM) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of Italy is"}]
    answer = post(http, messages=begun, continue_final_message=True, add_generation_prompt=False).json()
    assert answer["choices"][0]["message"]["content"].startswith(" Rome")
    refused = post(http, continue_final_message=True)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")


def test_templates_of_requests_only_where_they_are_allowed(http: httpx2.Client, serve: Serve) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}{{ ending }}"
    fields = {"chat_template": template, "chat_template_kwargs": {"ending": " It is"}, "return_token_ids": True}
    assert post(http, **fields).json()["error"]["param"] == "chat_template"
    with httpx2.Client(base_url=serve(allow_request_template=True).url) as open_http:
        assert post(open_http, **fields).json()["usage"]["prompt_tokens"] < 15
        hostile = {**fields, "chat_template_kwargs": {"ending": "<|im_start|>"}}
        assert "special token" in post(open_http, **hostile).json()["error"]["message"]
        broken = {**fields, "chat_template": "{{ messages.__class__ }}{% for x in range(10**9) %}x{% endfor %}"}
        assert post(open_http, **broken).status_code == 400
        endless = {
            **fields,
            "chat_template": "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}",
        }
        assert "the template takes more than" in post(open_http, **endless).json()["error"]["message"]
        named = {**fields, "chat_template_kwargs": {"self": 7}}
        refused = post(open_http, **named)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "chat_template_kwargs"
        assert "'self', which cannot be a variable" in refused.json()["error"]["message"]


# Constraints


def test_parse_fills_a_model(client: openai.OpenAI) -> None:
    for max_tokens in (200, 24):
        parsed = client.chat.completions.parse(
            model="smollm2", messages=QUESTION, response_format=City, max_tokens=max_tokens, temperature=0
        )
        city = parsed.choices[0].message.parsed
        assert isinstance(city, City)


@pytest.mark.parametrize(
    ("fields", "is_right"),
    [
        ({"response_format": {"type": "json_object"}}, lambda text: isinstance(json.loads(text), dict)),
        (
            {"response_format": {"type": "json_object", "schema": City.model_json_schema()}},
            City.model_validate_json,
        ),
        ({"guided_json": City.model_json_schema()}, City.model_validate_json),
        ({"guided_regex": "[0-9]{3}"}, str.isdecimal),
        ({"guided_choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"guided_grammar": 'root ::= "a" | "b"'}, lambda text: text in ("a", "b")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda text: text in ("yes", "no")),
        ({"structured_outputs": {"json": City.model_json_schema()}}, City.model_validate_json),
        ({"regex": "x{4}"}, lambda text: text == "xxxx"),
        ({"ebnf": 'start: "so"'}, lambda text: text == "so"),
        ({"json_schema": json.dumps({"type": "integer", "maximum": 9})}, str.isdecimal),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_every_way_to_constrain_a_text(http: httpx2.Client, fields: dict[str, Any], is_right: Any) -> None:
    choice = post(http, max_tokens=40, **fields).json()["choices"][0]
    assert is_right(choice["message"]["content"])
    assert (choice["finish_reason"], choice["ramet"]["complete"]) == ("stop", True)


def test_json_that_cannot_end_in_time_is_cut_off_and_says_so(http: httpx2.Client) -> None:
    choice = post(http, max_tokens=2, guided_json=City.model_json_schema()).json()["choices"][0]
    assert (choice["finish_reason"], choice["ramet"]["complete"]) == ("length", False)


# What is refused


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
        ),
        (
            {
                "messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {}}]}, *QUESTION],
                "tools": [NOOP],
            },
            "messages[0].content[0]",
        ),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": "7"}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 99}, "stop"),
        ({"stop": 3}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"3": 1000}}, "logit_bias[3]"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 10**6}, "top_logprobs"),
        ({"best_of": 4}, "best_of"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [NOOP, NOOP]}, "tools[1].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [NOOP], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"type": "object"}}},
            "response_format.json_schema",
        ),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs"),
        ({"guided_json": {"type": "wrong"}}, "guided_json"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"model": "gpt-7"}, "model"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"stream_options": 3}, "stream_options"),
        ({"max_tokens": 10**7}, "max_tokens"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_values_are_refused_by_name(
    http: httpx2.Client, fields: dict[str, Any], param: str | None, stream: bool
) -> None:
    answer = post(http, **fields, stream=stream)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (404 if "model" in fields else 400, param), error


def test_a_prompt_too_long_has_the_code_that_clients_know(http: httpx2.Client) -> None:
    error = post(http, messages=[{"role": "user", "content": "hi " * 9000}]).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert error["message"].endswith("tokens exceeds the context limit of 8192 tokens: shorten the prompt")


def test_unknown_fields_are_accepted(http: httpx2.Client) -> None:
    ignored = {"user": "me", "store": False, "metadata": {}, "no_stop_trim": False, "separate_reasoning": 3, "zz": None}
    assert post(http, **ignored, service_tier="auto", seed=-1).status_code == 200


def test_errors_of_the_client_library(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-7", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=-3)
    raw = client.chat.completions.with_raw_response.create(model="smollm2", messages=QUESTION, max_tokens=1)
    assert raw.headers["x-request-id"].startswith("req-")


def test_a_salt_has_a_cache_of_its_own(http: httpx2.Client) -> None:
    def cached(salt: str) -> int:
        answer = post(http, cache_salt=salt, messages=[{"role": "user", "content": "A long enough text. " * 20}])
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert (cached("a"), cached("b")) == (0, 0)
    assert cached("a") > 50
