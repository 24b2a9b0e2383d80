"""OpenAI's own client on `/v1/responses`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from ramet.runtime.server.listener import BackgroundServer

from ..conftest import Serve

pytestmark = pytest.mark.model

QUESTION = "What is the capital of France?"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class Animal(pydantic.BaseModel):
    name: Literal["cat", "dog"]
    legs: Literal[4]


def client_of(server: BackgroundServer, api_key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=api_key, max_retries=0)


@pytest.fixture
def client(server: BackgroundServer) -> Iterator[openai.OpenAI]:
    with client_of(server) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> openai.types.responses.Response:
    body: dict[str, Any] = {"model": "smollm2", "input": QUESTION, "max_output_tokens": 16, "temperature": 0.0}
    response = client.responses.create(**body | fields)
    assert isinstance(response, openai.types.responses.Response)
    return response


def test_a_response(client: openai.OpenAI) -> None:
    response = ask(client, metadata={"a": "b"})
    assert "Paris" in response.output_text
    assert (response.status, response.model, response.metadata) == ("completed", "smollm2", {"a": "b"})
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_instructions_and_items(client: openai.OpenAI) -> None:
    as_items = [
        {"role": "system", "content": [{"type": "input_text", "text": "Answer briefly."}]},
        {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
    ]
    instructed = ask(client, instructions="Answer briefly.")
    assert instructed.output_text == ask(client, input=as_items).output_text
    assert instructed.output_text != ask(client).output_text


def test_a_response_that_was_cut_off_is_incomplete(client: openai.OpenAI) -> None:
    response = ask(client, max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_cached_tokens_are_told(client: openai.OpenAI) -> None:
    salted = {"cache_salt": "responses"}
    first, second = (ask(client, extra_body=salted).usage for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.input_tokens_details.cached_tokens == 0
    assert second.input_tokens_details.cached_tokens == first.input_tokens - 1


def test_a_stream_says_what_a_response_says(client: openai.OpenAI) -> None:
    whole = ask(client)
    with client.responses.stream(model="smollm2", input=QUESTION, max_output_tokens=16, temperature=0.0) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert len(deltas) > 1
    assert "".join(deltas) == final.output_text == whole.output_text
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_an_incomplete_stream_ends_with_its_event(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="smollm2", input=QUESTION, max_output_tokens=3, stream=True))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_logprobs_are_those_of_a_chat(client: openai.OpenAI) -> None:
    wanted: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    chat = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=16,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    assert chat.choices[0].logprobs is not None
    expected = [entry.model_dump() for entry in chat.choices[0].logprobs.content or ()]
    response = ask(client, **wanted)
    assert response.top_logprobs == 2
    assert text_part(response).logprobs is not None
    assert [entry.model_dump() for entry in text_part(response).logprobs or ()] == expected
    with client.responses.stream(
        model="smollm2", input=QUESTION, max_output_tokens=16, temperature=0.0, **wanted
    ) as stream:
        deltas = [event for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert [entry.token for delta in deltas for entry in delta.logprobs] == [entry["token"] for entry in expected]
    assert [entry.model_dump() for entry in text_part(final).logprobs or ()] == expected


def test_without_being_asked_for_there_are_no_logprobs(client: openai.OpenAI) -> None:
    assert text_part(ask(client)).logprobs == []


def text_part(response: openai.types.responses.Response) -> openai.types.responses.ResponseOutputText:
    (item,) = response.output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    return part


def test_output_of_a_type(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "smollm2", "input": "Name a pet.", "temperature": 0.0, "max_output_tokens": 60}
    parsed = client.responses.parse(text_format=Animal, **fields)
    assert isinstance(parsed.output_parsed, Animal)
    with client.responses.stream(text_format=Animal, **fields) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed


def test_any_json_object(client: openai.OpenAI) -> None:
    response = ask(
        client, text={"format": {"type": "json_object"}}, extra_body={"on_incomplete": "close"}, max_output_tokens=30
    )
    assert isinstance(json.loads(response.output_text), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_function_is_called_and_answered(client: openai.OpenAI, choice: Any) -> None:
    given: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    called = ask(
        client, input=given, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, max_output_tokens=100
    )
    (call,) = called.output
    assert call.type == "function_call"
    assert (call.name, called.status) == ("get_weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    resent = ask(client, input=[*given, call, output], tools=[WEATHER], tool_choice="none")
    went_on = ask(client, input=[output], previous_response_id=called.id, tools=[WEATHER], tool_choice="none")
    assert resent.output_text == went_on.output_text != ""


def test_a_call_is_streamed(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model="smollm2",
        input="How is the weather in Rome?",
        tools=[WEATHER],  # type: ignore[list-item]
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=100,
        temperature=0.0,
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    assert "".join(deltas) == call.arguments
    assert set(json.loads(call.arguments)) == {"city"}


def test_a_conversation_goes_on_from_a_response(client: openai.OpenAI) -> None:
    first = ask(client)
    second = ask(client, input="And of Italy?", previous_response_id=first.id)
    items = [
        {"role": "user", "content": QUESTION},
        *first.output,
        {"role": "user", "content": "And of Italy?"},
    ]
    assert second.previous_response_id == first.id
    assert second.output_text == ask(client, input=items).output_text
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > 0
    assert client.responses.retrieve(second.id).output_text == second.output_text


def test_a_stream_is_kept_too(client: openai.OpenAI) -> None:
    with client.responses.stream(model="smollm2", input=QUESTION, max_output_tokens=5) as stream:
        for event in stream:
            if event.type == "response.incomplete":
                kept = client.responses.retrieve(event.response.id)
    assert kept.output_text == event.response.output_text  # type: ignore[union-attr]


def test_what_is_not_kept_of_a_response_is_refused_with_the_reason(client: openai.OpenAI) -> None:
    kept = ask(client)
    with pytest.raises(openai.NotFoundError, match="the items of an input are not kept"):
        list(client.responses.input_items.list(kept.id))
    with pytest.raises(openai.NotFoundError, match="no response is made in the background"):
        client.responses.cancel(kept.id)


def test_what_is_deleted_or_was_never_kept_is_gone(client: openai.OpenAI) -> None:
    kept, other = ask(client), ask(client, store=False)
    client.responses.delete(kept.id)
    for response in (kept, other):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.delete(response.id)
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, previous_response_id=response.id)
        assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_tenants_do_not_see_each_others_responses(serve: Serve) -> None:
    server = serve(api_keys=("alice=alice-key", "bob=bobs-key"))
    with client_of(server, "alice-key") as alice, client_of(server, "bobs-key") as bob:
        response = ask(alice, max_output_tokens=3)
        assert alice.responses.retrieve(response.id).id == response.id
        with pytest.raises(openai.NotFoundError):
            bob.responses.retrieve(response.id)
        with pytest.raises(openai.BadRequestError):
            ask(bob, previous_response_id=response.id)


def test_async_clients(server: BackgroundServer, client: openai.OpenAI) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as many:

            async def one() -> str:
                async with many.responses.stream(
                    model="smollm2", input=QUESTION, temperature=0.0, max_output_tokens=16
                ) as stream:
                    return (await stream.get_final_response()).output_text

            return await asyncio.gather(*(one() for _ in range(4)))

    assert set(asyncio.run(run())) == {ask(client).output_text}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": 7}, "input"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"background": True}, "background"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_refusals_name_the_field(client: openai.OpenAI, fields: dict[str, Any], param: str, is_streamed: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, stream=is_streamed, **fields)
    assert caught.value.param == param


def test_a_full_server_says_so(client: openai.OpenAI, server: BackgroundServer) -> None:
    admission = server.service.admission
    place = admission.take(admission.max_live)
    try:
        for is_streamed in (False, True):
            with pytest.raises(openai.RateLimitError):
                ask(client, stream=is_streamed)
    finally:
        place.free()
