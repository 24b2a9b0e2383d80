"""AnswerStream: what SGLang's `generate(stream=True)` gives. What still runs is cancelled when nobody reads it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from .engine_loop import RequestHandle
from .generate_request import AskedText, GenerateAsk
from .outputs import OutputChunk, RequestOutput
from .sglang_format import finish_reason

Answer = dict[str, Any]
"""{"text", "output_ids", "meta_info": {"id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens",
"e2e_latency", and, if asked for, "input_token_logprobs", "output_token_logprobs", "input_top_logprobs",
"output_top_logprobs"}}"""


@dataclass(slots=True)
class StreamedAnswers:
    """What a stream has said so far, of every sample of every prompt."""

    ask: GenerateAsk
    handles: Sequence[RequestHandle]
    finish: Callable[[AskedText, RequestOutput], list[Answer]]
    eos_token_ids: Collection[int]
    num_running: int = field(init=False)
    texts: dict[int, str] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    first_idx: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        self.num_running = len(self.handles)
        for item in self.ask.items:
            self.first_idx.append(self.first_idx[-1] + item.native.sampling.n)

    @property
    def is_over(self) -> bool:
        return self.num_running == 0

    def end(self) -> None:
        """Cancel what still runs; there are no more answers."""
        self.num_running = 0
        abort(self.handles)

    def take(self, request_idx: int, chunk: OutputChunk) -> Iterator[Answer]:
        """The answers that a chunk changes."""
        item = self.ask.items[request_idx]
        idx = self.first_idx[request_idx] + chunk.index
        if chunk.output is not None:
            self.num_running -= 1
            for offset, answer in enumerate(self.finish(item, chunk.output)):
                yield {**answer, "index": self.first_idx[request_idx] + offset}
            return
        if item.native.is_prefill_only:
            return
        text = self.texts[idx] = self.texts.get(idx, "") + chunk.text
        token_ids = self.token_ids.setdefault(idx, [])
        token_ids += chunk.token_ids
        reason = finish_reason(chunk.finish_reason, chunk.stop_reason, token_ids, self.eos_token_ids)
        meta = {
            "id": chunk.request_id,
            "finish_reason": reason,
            "prompt_tokens": len(item.request.prompt_token_ids),
            "completion_tokens": len(token_ids),
        }
        yield {"text": text, "output_ids": list(token_ids), "meta_info": meta, "index": idx}


class AnswerStream(Iterator[Answer]):
    """Waits for the answers in turn."""

    def __init__(self, merged: StreamedAnswers) -> None:
        self._merged = merged
        self._ready: deque[Answer] = deque()
        chunks = self._chunks = SimpleQueue[tuple[int, OutputChunk]]()  # the engine may hold it, but not the stream
        _follow(merged.handles, lambda idx, chunk: chunks.put((idx, chunk)))

    def __next__(self) -> Answer:
        try:
            while not self._ready:
                if self._merged.is_over:
                    raise StopIteration
                self._ready += self._merged.take(*self._chunks.get())
        except BaseException:
            self.close()
            raise
        return self._ready.popleft()

    def close(self) -> None:
        """Cancel what still runs. Idempotent."""
        self._ready.clear()
        self._merged.end()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


class AsyncAnswerStream(AsyncIterator[Answer]):
    """`AnswerStream` for the event loop that runs now."""

    def __init__(self, merged: StreamedAnswers) -> None:
        self._merged = merged
        self._ready: deque[Answer] = deque()
        chunks = self._chunks = asyncio.Queue[tuple[int, OutputChunk]]()
        loop = asyncio.get_running_loop()

        def put(idx: int, chunk: OutputChunk) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(chunks.put_nowait, (idx, chunk))

        _follow(merged.handles, put)

    async def __anext__(self) -> Answer:
        try:
            while not self._ready:
                if self._merged.is_over:
                    raise StopAsyncIteration
                self._ready += self._merged.take(*await self._chunks.get())
        except BaseException:
            self._close()
            raise
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Cancel what still runs. Idempotent."""
        self._close()

    def __del__(self) -> None:
        with suppress(Exception):
            self._close()

    def _close(self) -> None:
        self._ready.clear()
        self._merged.end()


def abort(handles: Sequence[RequestHandle]) -> None:
    """Cancel those that still run."""
    for handle in handles:
        handle.abort()


def _follow(handles: Sequence[RequestHandle], take: Callable[[int, OutputChunk], object]) -> None:
    """Pass on every chunk, with the index of its request."""
    for idx, handle in enumerate(handles):
        handle.add_chunk_callback(partial(_passed_on, take, idx))


def _passed_on(take: Callable[[int, OutputChunk], object], idx: int, chunk: OutputChunk) -> None:
    take(idx, chunk)
