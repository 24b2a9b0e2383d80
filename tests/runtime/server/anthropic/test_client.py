"""Anthropic's own client against the server."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx2
import pydantic
import pytest

from ramet import LLM
from ramet.runtime.server.listener import BackgroundServer

from ..conftest import Serve

pytestmark = pytest.mark.model

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0.0}
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


def client_of(server: BackgroundServer, api_key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=api_key, max_retries=0)


@pytest.fixture
def client(server: BackgroundServer) -> Iterator[anthropic.Anthropic]:
    with client_of(server) as client:
        yield client


def ask(client: anthropic.Anthropic, **fields: Any) -> anthropic.types.Message:
    body: dict[str, Any] = {"model": "smollm2", "max_tokens": 12, "messages": QUESTION, "extra_body": GREEDY}
    message = client.messages.create(**body | fields)
    assert isinstance(message, anthropic.types.Message)
    return message


def text_of(message: anthropic.types.Message) -> str:
    (block,) = message.content
    assert isinstance(block, anthropic.types.TextBlock)
    return block.text


def test_a_message(client: anthropic.Anthropic) -> None:
    message = ask(client, max_tokens=16)
    assert "Paris" in text_of(message)
    assert text_of(ask(client, system="Answer briefly.")) != text_of(ask(client))
    assert (message.role, message.model, message.stop_reason) == ("assistant", "smollm2", "end_turn")
    assert str(message._request_id).startswith("req-")


def test_blocks_and_fields_that_mean_nothing_here_change_nothing(client: anthropic.Anthropic) -> None:
    block = {"type": "text", "text": QUESTION[0]["content"], "cache_control": {"type": "ephemeral"}}
    given = ask(
        client,
        messages=[{"role": "user", "content": [block]}],
        metadata={"user_id": "x"},
        service_tier="auto",
        thinking={"type": "disabled"},
        extra_headers={"anthropic-beta": "some-beta-2026-01-01"},
    )
    assert text_of(given) == text_of(ask(client))


def test_stop_reasons(client: anthropic.Anthropic) -> None:
    whole = ask(client, max_tokens=16)
    cut = ask(client, max_tokens=3)
    stopped = ask(client, stop_sequences=["Paris"], max_tokens=16)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris")
    assert text_of(whole).startswith(text_of(stopped) + "Paris")


def test_the_context_may_end_before_max_tokens(client: anthropic.Anthropic, smollm2: LLM) -> None:
    """Clients ask for many tokens whatever the model's context is."""
    messages: list[Any] = [{"role": "user", "content": "word " * 20}]
    fields = {"messages": messages, "tools": [WEATHER], "extra_body": GREEDY | {"max_tokens": smollm2.max_context_len}}
    assert ask(client, **fields | {"stop_sequences": ["."]}).stop_reason in ("stop_sequence", "end_turn")


def test_an_answer_that_was_begun_is_continued(client: anthropic.Anthropic) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    assert text_of(ask(client, messages=begun)).startswith(" Paris")


def test_tokens_are_counted_and_the_cache_is_told_of(client: anthropic.Anthropic) -> None:
    messages = [{"role": "user", "content": "Count the sheep. " * 10}]
    counted = client.messages.count_tokens(model="smollm2", messages=messages)  # type: ignore[arg-type]
    salted = GREEDY | {"cache_salt": "counting"}
    first, second = (ask(client, messages=messages, extra_body=salted).usage for _ in range(2))
    assert (first.input_tokens, first.cache_read_input_tokens) == (counted.input_tokens, 0)
    assert second.cache_read_input_tokens == counted.input_tokens - 1
    assert second.input_tokens == 1


def test_a_prompt_can_be_cached_ahead(client: anthropic.Anthropic) -> None:
    salted = GREEDY | {"cache_salt": "ahead"}
    ahead = ask(client, max_tokens=0, extra_body=salted)
    assert (ahead.content, ahead.usage.output_tokens, ahead.usage.cache_read_input_tokens) == ([], 0, 0)
    assert ask(client, extra_body=salted).usage.input_tokens == 1


def test_a_stream_says_what_a_message_says(client: anthropic.Anthropic) -> None:
    whole = ask(client, max_tokens=16)
    with client.messages.stream(model="smollm2", max_tokens=16, messages=QUESTION, extra_body=GREEDY) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(texts) > 1
    assert "".join(texts) == text_of(whole)
    assert final.content[0].type == "text"
    assert (final.content[0].text, final.stop_reason) == (text_of(whole), whole.stop_reason)
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) == (
        whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    )


def test_raw_events(client: anthropic.Anthropic) -> None:
    events = list(
        client.messages.create(model="smollm2", max_tokens=3, messages=QUESTION, stream=True, extra_body=GREEDY)
    )
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert events[0].type == "message_start"
    assert (
        events[0].message.usage.input_tokens
        == client.messages.count_tokens(model="smollm2", messages=QUESTION).input_tokens
    )


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_tool_is_called_and_answered(client: anthropic.Anthropic, choice: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 100}
    messages = [{"role": "user", "content": "How is the weather in Paris for 3 days?"}]
    called = ask(client, messages=messages, tool_choice=choice | {"disable_parallel_tool_use": True}, **fields)
    assert called.stop_reason == "tool_use"
    (call,) = [block for block in called.content if isinstance(block, anthropic.types.ToolUseBlock)]
    assert call.name == "get_weather"
    assert call.input["city"] in ("Paris", "Rome")
    assert call.input["days"] in range(1, 10)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Sunny."}]}
    messages += [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]  # type: ignore[dict-item]
    answered = ask(client, messages=messages, tool_choice={"type": "none"}, **fields)
    assert answered.stop_reason in ("end_turn", "max_tokens")
    assert text_of(answered)


def test_a_call_is_streamed(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model="smollm2",
        max_tokens=100,
        messages=[{"role": "user", "content": "How is the weather in Rome?"}],
        tools=[WEATHER],  # type: ignore[list-item]
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        extra_body=GREEDY,
    ) as stream:
        partial = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    (call,) = [block for block in final.content if block.type == "tool_use"]
    assert pydantic.TypeAdapter(dict[str, Any]).validate_json("".join(partial)) == call.input
    assert (final.stop_reason, set(call.input)) == ("tool_use", {"city", "days"})


def test_output_of_a_type(client: anthropic.Anthropic) -> None:
    class Animal(pydantic.BaseModel):
        name: Literal["cat", "dog"]
        legs: Literal[4]

    parsed = client.messages.parse(
        model="smollm2",
        max_tokens=60,
        messages=[{"role": "user", "content": "Name a pet."}],
        output_format=Animal,
        extra_body=GREEDY,
    )
    assert isinstance(parsed.parsed_output, Animal)


def test_async_clients(server: BackgroundServer, client: anthropic.Anthropic) -> None:
    async def run() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as many:

            async def one() -> str:
                async with many.messages.stream(
                    model="smollm2", max_tokens=12, messages=QUESTION, extra_body=GREEDY
                ) as stream:
                    return await stream.get_final_text()

            return await asyncio.gather(*(one() for _ in range(4)))

    assert set(asyncio.run(run())) == {text_of(ask(client))}


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list()
    assert (model.id, model.type, model.created_at.tzinfo) == ("smollm2", "model", datetime.UTC)
    assert client.models.retrieve("smollm2") == model


def test_a_client_that_leaves_frees_everything(client: anthropic.Anthropic, server: BackgroundServer) -> None:
    with client.messages.stream(
        model="smollm2", max_tokens=2000, messages=QUESTION, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream.text_stream))
        assert server.service.admission.num_live == 1
    deadline = time.monotonic() + 30
    while server.service.admission.num_live and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.service.admission.num_live == 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, r"messages\[0\].content\[0\].type='image'"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"messages\[0\].role: .*not 'robot'"),
        ({"messages": [{"role": "user", "content": 7}]}, r"messages\[0\].content: .*not 7"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content is missing"),
        ({"messages": []}, r"messages=\[\] is too short"),
        ({"extra_body": {"max_tokens": "many"}}, "max_tokens: .*not 'many'"),
        ({"max_tokens": -1}, "max_tokens: "),
        ({"extra_body": {"top_p": 7}}, "top_p=7"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools\[0\].type='web_search_20250305'"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [WEATHER, WEATHER]}, r"tools\[1\].name='get_weather' is the name of another"),
        (
            {"messages": [{"role": "user", "content": "word " * 9000}], "max_tokens": 30},
            "prompt is too long: prompt of [0-9]+ tokens exceeds the context limit of 8192 tokens: shorten the prompt'",
        ),
        ({"stop_sequences": [1]}, r"stop_sequences\[0\]: "),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_refusals_name_the_field(
    client: anthropic.Anthropic, fields: dict[str, Any], named: str, is_streamed: bool
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=named) as caught:
        ask(client, stream=is_streamed, **fields)
    assert str(caught.value.request_id).startswith("req-")
    body = caught.value.body
    assert isinstance(body, dict)
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")


def test_other_errors_are_the_clients_types(client: anthropic.Anthropic, serve: Serve) -> None:
    with pytest.raises(anthropic.NotFoundError, match="no model 'claude-opus'"):
        ask(client, model="claude-opus")
    closed = serve(api_keys=("alice=alice-key",))
    with client_of(closed, "two") as stranger, pytest.raises(anthropic.AuthenticationError):
        ask(stranger)
    with client_of(closed, "alice-key") as alice:
        assert text_of(ask(alice))
        admission = closed.service.admission
        place = admission.take(admission.max_live)
        for is_streamed in (False, True):
            with pytest.raises(anthropic.RateLimitError, match="full") as caught:
                ask(alice, stream=is_streamed)
            assert int(caught.value.response.headers["retry-after"]) >= 1
        place.free()
        assert text_of(ask(alice))


def test_a_body_that_is_no_json_is_a_400(http: httpx2.Client) -> None:
    answer = http.post("/v1/messages", content=b"{", headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (400, "error")


def test_an_answer_that_fills_the_context_says_so(serve: Serve) -> None:
    with LLM("smollm2", num_blocks=4) as small, client_of(serve(small)) as client:
        message = ask(client, max_tokens=1000, extra_body=GREEDY | {"ignore_eos": True})
        assert message.stop_reason == "model_context_window_exceeded"
        assert message.usage.input_tokens + message.usage.output_tokens == small.max_context_len
