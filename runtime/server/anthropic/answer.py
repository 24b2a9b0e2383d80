"""What a chat turn has become, as Anthropic's API says it: a message, or the events of a stream."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from ...outputs import RequestOutput
from ..chat.ask import ChatEnd, ChatEvent, ChatMessage, SampleEnd, TextDelta, ToolCallBegin, ToolCallDelta, ToolCallMade
from ..errors import ApiError, anthropic_body
from ..streaming import event

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Envelope:
    """What surrounds the contents of an answer.

    Attributes:
        model: the name to answer by.
        max_tokens: as it was asked for; 0 for a prompt that is only to be cached.
    """

    model: str
    max_tokens: int
    message_id: str = field(default_factory=lambda: f"msg_{secrets.token_hex(12)}")

    def message(self, content: list[Json], stop: Json, usage: Json) -> Json:
        head = {"id": self.message_id, "type": "message", "role": "assistant", "model": self.model}
        return {**head, "content": content, **stop, "usage": usage}


def message_body(envelope: Envelope, message: ChatMessage, output: RequestOutput) -> Json:
    """The answer to a request that is not streamed."""
    if envelope.max_tokens == 0:
        return envelope.message([], _stop("max_tokens"), _usage(output, 0))
    calls = [_tool_use(call.call_id, call.name, _input(call)) for call in message.tool_calls]
    texts = [_text(message.content)] if message.content or not calls else []
    stop = _stop_of(envelope, message.end, has_calls=bool(calls))
    return envelope.message([*texts, *calls], stop, _usage(output, message.end.num_tokens))


class MessageEvents:
    """Makes the events of a stream: `start`, then `of` every ChatEvent; `error` if it fails."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._num_blocks = 0
        self._open_type: str | None = None
        self._has_calls = False
        self._end: SampleEnd | None = None

    def start(self, num_prompt_tokens: int) -> bytes:
        """What was found in the cache is known later, and said by the last but one event."""
        usage = _usage_counts(num_prompt_tokens, 0, 0)
        return _named({"type": "message_start", "message": self._envelope.message([], _stop(None), usage)})

    def of(self, happened: ChatEvent) -> Iterator[bytes]:
        if isinstance(happened, ChatEnd):
            yield from self._finish(happened.output)
        elif isinstance(happened, SampleEnd):
            self._end = happened
        elif self._envelope.max_tokens == 0:
            return
        elif isinstance(happened, TextDelta):
            if happened.text:
                if self._open_type != "text":
                    yield from self._open(_text(""))
                yield self._delta({"type": "text_delta", "text": happened.text})
        elif isinstance(happened, ToolCallBegin):
            self._has_calls = True
            yield from self._open(_tool_use(happened.call_id, happened.name, {}))
        elif isinstance(happened, ToolCallDelta) and happened.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": happened.arguments})

    def error(self, error: ApiError) -> Iterable[bytes]:
        return [_named(anthropic_body(error))]

    def _finish(self, output: RequestOutput) -> Iterator[bytes]:
        assert self._end is not None, "a sample ends before its request does"
        is_cached_only = self._envelope.max_tokens == 0
        if self._num_blocks == 0 and not is_cached_only:
            yield from self._open(_text(""))
        yield from self._close()
        stop = _stop("max_tokens") if is_cached_only else _stop_of(self._envelope, self._end, has_calls=self._has_calls)
        usage = _usage(output, 0 if is_cached_only else self._end.num_tokens)
        yield _named({"type": "message_delta", "delta": stop, "usage": usage})
        yield _named({"type": "message_stop"})

    def _open(self, block: Json) -> Iterator[bytes]:
        yield from self._close()
        self._open_type = block["type"]
        self._num_blocks += 1
        yield _named({"type": "content_block_start", "index": self._num_blocks - 1, "content_block": block})

    def _close(self) -> Iterator[bytes]:
        if self._open_type is not None:
            self._open_type = None
            yield _named({"type": "content_block_stop", "index": self._num_blocks - 1})

    def _delta(self, delta: Json) -> bytes:
        return _named({"type": "content_block_delta", "index": self._num_blocks - 1, "delta": delta})


def _named(data: Json) -> bytes:
    return event(data, data["type"])


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _tool_use(call_id: str, name: str, given: Json) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def _input(call: ToolCallMade) -> Json:
    """Arguments that were cut off by max_tokens are given as far as they go."""
    try:
        given = from_json(call.arguments, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


def _stop(reason: str | None, sequence: str | None = None) -> Json:
    return {"stop_reason": reason, "stop_sequence": sequence}


def _stop_of(envelope: Envelope, end: SampleEnd, *, has_calls: bool) -> Json:
    if end.finish == "length":
        # A call that would not have fitted into max_tokens ends earlier, and the engine calls that "stop".
        is_asked_for = end.num_tokens >= envelope.max_tokens or end.reason == "stop"
        return _stop("max_tokens" if is_asked_for else "model_context_window_exceeded")
    if has_calls:
        return _stop("tool_use")
    if isinstance(end.stop_reason, str):
        return _stop("stop_sequence", end.stop_reason)
    return _stop("end_turn")


def _usage(output: RequestOutput, num_generated: int) -> Json:
    return _usage_counts(len(output.prompt_token_ids), output.num_cached_tokens, num_generated)


def _usage_counts(num_prompt: int, num_cached: int, num_generated: int) -> Json:
    """In Anthropic's accounting input_tokens are those that no cache has read or was paid to write."""
    return {
        "input_tokens": num_prompt - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_generated,
    }
