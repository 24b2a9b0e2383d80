"""What Anthropic's clients are told, made from a chat turn's events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ramet.runtime.server.anthropic.answer import Envelope, MessageEvents, message_body
from ramet.runtime.server.chat.ask import (
    ChatEnd,
    ChatEvent,
    ChatMessage,
    FinishLiteral,
    SampleEnd,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallMade,
)
from ramet.runtime.server.errors import ApiError

from ..chat_turn import OUTPUT, end, parsed

USAGE = {"input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 15, "output_tokens": 8}


def whole(content: str, *calls: ToolCallMade, ended: SampleEnd | None = None, max_tokens: int = 8) -> dict[str, Any]:
    message = ChatMessage(0, content, calls, ended or end(), (), None)
    return message_body(Envelope("m", max_tokens), message, OUTPUT)


def streamed(happened: Iterable[ChatEvent], max_tokens: int = 8) -> list[dict[str, Any]]:
    events = MessageEvents(Envelope("m", max_tokens))
    pieces = [events.start(20)]
    for one in happened:
        pieces += events.of(one)
    return parsed(pieces)


def test_a_message_of_text() -> None:
    body = whole("Hello.")
    assert body.pop("id").startswith("msg_")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
    }


@pytest.mark.parametrize(
    ("ended", "max_tokens", "reason", "sequence"),
    [
        (end("stop", "END"), 8, "stop_sequence", "END"),
        (end("stop", 2), 8, "end_turn", None),
        (end("length"), 8, "max_tokens", None),
        (replace(end("length"), reason="length"), 9, "model_context_window_exceeded", None),
        (replace(end("length"), reason="stop"), 9, "max_tokens", None),
    ],
)
def test_stop_reasons(ended: SampleEnd, max_tokens: int, reason: str, sequence: str | None) -> None:
    body = whole("x", ended=ended, max_tokens=max_tokens)
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize("finish", ["stop", "tool_calls"])
def test_calls_have_their_input_as_an_object(finish: FinishLiteral) -> None:
    """Whether the call was forced, which OpenAI calls a stop, or not."""
    body = whole("", ToolCallMade("id", "look", '{"a": [1]}'), ended=end(finish))
    assert body["content"] == [{"type": "tool_use", "id": "id", "name": "look", "input": {"a": [1]}}]
    assert body["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("arguments", "given"), [('{"a": 1, "b": "be', {"a": 1, "b": "be"}), ('{"a', {}), ("", {}), ("[1]", {})]
)
def test_a_call_that_was_cut_off_has_what_there_is(arguments: str, given: dict[str, Any]) -> None:
    body = whole("", ToolCallMade("id", "look", arguments), ended=end("length"))
    assert (body["content"][0]["input"], body["stop_reason"]) == (given, "max_tokens")


def test_a_stream_of_text_and_a_call() -> None:
    events = streamed(
        [
            TextDelta(0, "Let"),
            TextDelta(0, ""),
            TextDelta(0, " me."),
            ToolCallBegin(0, 0, "id", "look"),
            ToolCallDelta(0, 0, '{"a"'),
            ToolCallDelta(0, 0, ""),
            ToolCallDelta(0, 0, ": 1}"),
            end("tool_calls"),
            ChatEnd(OUTPUT),
        ]
    )
    assert [(event["type"], event.get("index")) for event in events] == [
        ("message_start", None),
        ("content_block_start", 0),
        ("content_block_delta", 0),
        ("content_block_delta", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1),
        ("content_block_delta", 1),
        ("content_block_stop", 1),
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert events[0]["message"]["usage"]["input_tokens"] == 20
    assert events[2]["delta"] == {"type": "text_delta", "text": "Let"}
    assert events[5]["content_block"] == {"type": "tool_use", "id": "id", "name": "look", "input": {}}
    assert events[6]["delta"] == {"type": "input_json_delta", "partial_json": '{"a"'}
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"] == USAGE


def test_an_empty_answer_has_one_empty_block() -> None:
    assert whole("")["content"] == [{"type": "text", "text": ""}]
    kinds = [event["type"] for event in streamed([end(), ChatEnd(OUTPUT)])]
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]


def test_a_prompt_that_is_only_to_be_cached_has_no_answer() -> None:
    body = whole("x", max_tokens=0)
    events = streamed([TextDelta(0, "x"), end("length"), ChatEnd(OUTPUT)], max_tokens=0)
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]
    assert body["content"] == []
    for usage in (body["usage"], events[1]["usage"]):
        assert usage["output_tokens"] == 0
    assert body["stop_reason"] == events[1]["delta"]["stop_reason"] == "max_tokens"


def test_a_failure_is_an_event_of_its_own() -> None:
    (failure,) = parsed(MessageEvents(Envelope("m", 8)).error(ApiError(503, "gone")))
    assert failure == {"type": "error", "error": {"type": "overloaded_error", "message": "gone"}}
