"""ResponseEvents: a chat turn as the events of `/v1/responses`.

created, in_progress
output_item.added, content_part.added, output_text.delta ..., output_text.done, content_part.done, output_item.done
output_item.added, function_call_arguments.delta ..., function_call_arguments.done, output_item.done
completed, or incomplete, or failed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...outputs import TokenLogprobs
from ..chat.ask import ChatEnd, ChatEvent, SampleEnd, TextDelta, ToolCallBegin, ToolCallDelta
from ..errors import ApiError
from ..streaming import event
from .responses_answer import Envelope, Json, call_item, message_item, new_id, text_part

ListLogprobs = Callable[[Sequence[int], Sequence[TokenLogprobs]], list[Json]]


@dataclass(slots=True)
class _OpenItem:
    """The item that is being written.

    Attributes:
        begin: the call that it is; None for text.
        written: its text, or its arguments, so far.
        logprobs: of the text.
    """

    item_id: str
    begin: ToolCallBegin | None
    written: str = ""
    logprobs: list[Json] = field(default_factory=list)

    def as_item(self, status: str) -> Json:
        if self.begin is None:
            return message_item(self.item_id, [text_part(self.written, self.logprobs)], status)
        return call_item(self.item_id, self.begin.call_id, self.begin.name, self.written, status)


class ResponseEvents:
    """`start`, then `of` every ChatEvent; `error` if it fails.

    Args:
        list_logprobs: makes of tokens and their logprobs what is told of them.

    Attributes:
        ended: the whole response, once it has ended.
    """

    def __init__(self, envelope: Envelope, list_logprobs: ListLogprobs) -> None:
        self.ended: Json | None = None
        self._envelope = envelope
        self._list_logprobs = list_logprobs
        self._items: list[Json] = []
        self._open: _OpenItem | None = None
        self._end: SampleEnd | None = None
        self._num_events = 0

    def start(self) -> Iterator[bytes]:
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._envelope.response("in_progress", []))

    def of(self, happened: ChatEvent) -> Iterator[bytes]:
        if isinstance(happened, TextDelta):
            yield from self._text(happened)
        elif isinstance(happened, ToolCallBegin):
            yield from self._begin(_OpenItem(new_id("fc"), happened))
        elif isinstance(happened, ToolCallDelta) and happened.arguments:
            yield self._write("function_call_arguments.delta", happened.arguments)
        elif isinstance(happened, SampleEnd):
            self._end = happened
        elif isinstance(happened, ChatEnd):
            yield from self._finish(happened)

    def error(self, error: ApiError) -> Iterable[bytes]:
        items = self._items if self._open is None else [*self._items, self._open.as_item("incomplete")]
        return [self._event("failed", response=self._envelope.failed(items, error))]

    def _finish(self, happened: ChatEnd) -> Iterator[bytes]:
        assert self._end is not None, "a sample ends before its request does"
        if self._open is None:
            yield from self._begin_text()
        yield from self._close("incomplete" if self._end.finish == "length" else "completed")
        self.ended = self._envelope.ended(self._items, self._end, happened.output)
        yield self._event(self.ended["status"], response=self.ended)

    def _text(self, delta: TextDelta) -> Iterator[bytes]:
        logprobs = self._list_logprobs(delta.token_ids, delta.logprobs)
        if not delta.text and not logprobs:
            return
        if self._open is None or self._open.begin is not None:
            yield from self._begin_text()
        assert self._open is not None
        self._open.logprobs += logprobs
        yield self._write("output_text.delta", delta.text, content_index=0, logprobs=logprobs)

    def _begin_text(self) -> Iterator[bytes]:
        yield from self._begin(_OpenItem(new_id("msg"), None))
        yield self._item_event("content_part.added", content_index=0, part=text_part("", []))

    def _begin(self, item: _OpenItem) -> Iterator[bytes]:
        yield from self._close("completed")
        self._open = item
        begun = item.as_item("in_progress") if item.begin else message_item(item.item_id, [], "in_progress")
        yield self._event("output_item.added", output_index=len(self._items), item=begun)

    def _write(self, kind: str, delta: str, **fields: Any) -> bytes:
        assert self._open is not None
        self._open.written += delta
        return self._item_event(kind, delta=delta, **fields)

    def _close(self, status: str) -> Iterator[bytes]:
        if self._open is None:
            return
        item = self._open.as_item(status)
        if self._open.begin is None:
            (part,) = item["content"]
            yield self._item_event("output_text.done", content_index=0, text=part["text"], logprobs=part["logprobs"])
            yield self._item_event("content_part.done", content_index=0, part=part)
        else:
            about = {"name": item["name"], "arguments": item["arguments"]}
            yield self._item_event("function_call_arguments.done", **about)
        yield self._event("output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = None

    def _item_event(self, kind: str, **fields: Any) -> bytes:
        assert self._open is not None
        return self._event(kind, item_id=self._open.item_id, output_index=len(self._items), **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        name = f"response.{kind}"
        self._num_events += 1
        return event({"type": name, "sequence_number": self._num_events - 1, **fields}, name)
