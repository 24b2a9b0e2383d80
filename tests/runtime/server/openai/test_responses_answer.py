"""What `/v1/responses` tells, made from a chat turn's events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ramet.runtime.logprobs import Logprob
from ramet.runtime.outputs import TokenLogprobs
from ramet.runtime.server.chat.ask import (
    ChatEnd,
    ChatEvent,
    ChatMessage,
    FinishLiteral,
    TextDelta,
    ToolCallBegin,
    ToolCallDelta,
    ToolCallMade,
)
from ramet.runtime.server.errors import ApiError
from ramet.runtime.server.openai.responses_answer import Envelope, Json, answer_messages, message_items
from ramet.runtime.server.openai.responses_schema import ResponsesBody
from ramet.runtime.server.openai.responses_stream import ResponseEvents

from ..chat_turn import OUTPUT, end, parsed

TURN: list[ChatEvent] = [
    TextDelta(0, "Let"),
    TextDelta(0, " me."),
    ToolCallBegin(0, 0, "c1", "look"),
    ToolCallDelta(0, 0, '{"a"'),
    ToolCallDelta(0, 0, ": 1}"),
]


def envelope(**fields: Any) -> Envelope:
    return Envelope(ResponsesBody.model_validate({"input": "Hi."} | fields), "m", is_stored=True)


def listed(token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> list[Json]:
    return [{"token": token_id} for token_id, _ in zip(token_ids, logprobs, strict=False)]


def streamed(*happened: ChatEvent) -> list[dict[str, Any]]:
    events = ResponseEvents(envelope(), listed)
    pieces = list(events.start())
    for one in happened:
        pieces += events.of(one)
    return parsed(pieces)


def without_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != "id"}


def test_a_stream_of_text_and_a_call() -> None:
    events = streamed(*TURN, end("tool_calls"), ChatEnd(OUTPUT))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [(event["type"].removeprefix("response."), event.get("output_index")) for event in events] == [
        ("created", None),
        ("in_progress", None),
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("output_text.delta", 0),
        ("output_text.delta", 0),
        ("output_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("function_call_arguments.delta", 1),
        ("function_call_arguments.delta", 1),
        ("function_call_arguments.done", 1),
        ("output_item.done", 1),
        ("completed", None),
    ]
    assert (events[2]["item"]["content"], events[3]["part"]["text"], events[6]["text"]) == ([], "", "Let me.")
    assert (events[9]["item"]["arguments"], events[12]["arguments"]) == ("", '{"a": 1}')
    assert {event["item_id"] for event in events[3:8]} == {events[2]["item"]["id"]}
    response = events[-1]["response"]
    assert response["output"] == [events[8]["item"], events[13]["item"]]
    assert (response["id"], response["status"]) == (events[0]["response"]["id"], "completed")


@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls"])
def test_streamed_and_whole_are_the_same(finish: FinishLiteral) -> None:
    message = ChatMessage(0, "Let me.", (ToolCallMade("c1", "look", '{"a": 1}'),), end(finish), (), None)
    whole = envelope().ended(message_items(message, []), message.end, OUTPUT)
    last = streamed(*TURN, end(finish), ChatEnd(OUTPUT))[-1]
    assert last["type"] == f"response.{whole['status']}"
    for key in whole.keys() - {"id", "created_at", "output"}:
        assert last["response"][key] == whole[key], key
    assert [without_ids(item) for item in last["response"]["output"]] == [without_ids(item) for item in whole["output"]]


def test_what_was_cut_off_is_incomplete() -> None:
    message = ChatMessage(0, "Let", (), end("length"), (), None)
    response = envelope().ended(message_items(message, []), message.end, OUTPUT)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"


def test_usage() -> None:
    assert envelope().ended([], end(), OUTPUT)["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 15, "cache_write_tokens": 0},
        "output_tokens": 8,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 28,
    }


def test_an_empty_answer_has_one_empty_text() -> None:
    (item,) = streamed(end(), ChatEnd(OUTPUT))[-1]["response"]["output"]
    (whole,) = message_items(ChatMessage(0, "", (), end(), (), None), [])
    assert without_ids(item) == without_ids(whole)
    assert whole["content"][0]["text"] == ""


def test_what_was_asked_is_repeated() -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}
    text = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}
    response = envelope(tools=[tool], text=text, metadata={"a": "b"}, instructions="Be kind.").response("queued", [])
    assert response["tools"] == [tool | {"description": None}]
    assert (response["text"], response["metadata"], response["instructions"]) == (text, {"a": "b"}, "Be kind.")
    assert (response["temperature"], response["top_p"], response["tool_choice"]) == (1.0, 1.0, "auto")


def test_logprobs_stand_beside_the_text_that_they_are_of() -> None:
    """A token whose text is never shown has its own, in a delta without text."""
    one = ({0: Logprob(-0.5, 1, "x")},)
    deltas = [TextDelta(0, "", (7,), one), TextDelta(0, "Let", (8,), one), TextDelta(0, "", (9,), one)]
    events = streamed(*deltas, end(), ChatEnd(OUTPUT))
    told = [(event["delta"], event["logprobs"]) for event in events if event["type"] == "response.output_text.delta"]
    assert told == [("", [{"token": 7}]), ("Let", [{"token": 8}]), ("", [{"token": 9}])]
    all_of_it = [{"token": 7}, {"token": 8}, {"token": 9}]
    (done,) = (event for event in events if event["type"] == "response.output_text.done")
    assert (done["text"], done["logprobs"]) == ("Let", all_of_it)
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == all_of_it


def test_a_failure_tells_what_there_was() -> None:
    events = ResponseEvents(envelope(), listed)
    list(events.start())
    list(events.of(TextDelta(0, "Let")))
    (failed,) = parsed(events.error(ApiError(500, "broken")))
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "broken"}
    assert failed["response"]["output"][0]["content"][0]["text"] == "Let"


def test_answers_become_messages_of_the_turns_that_follow() -> None:
    calls = (ToolCallMade("c1", "look", "{}"), ToolCallMade("c2", "look", '{"a'))
    messages = answer_messages(message_items(ChatMessage(0, "Let me.", calls, end("length"), (), None), []))
    assert messages == [
        {"role": "assistant", "content": "Let me."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
    ]
