"""LiveRequests: what one HTTP request has asked of the engine, from the moment that it has its place to its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from ..engine_loop import RequestHandle
from ..errors import RequestAbortedError
from ..llm import LLM
from ..outputs import OutputChunk, RequestOutput
from ..request import Request
from .admission import Place
from .errors import ApiError, timed_out
from .preparation import Preparation

Make = Callable[[Preparation], list[Request]]


class LiveRequests:
    """Leaving its block cancels what still runs. Belongs to the event loop; a worker calls `queue`, and nothing else.

    Args:
        place: freed when they have ended.
        timeout_s: for all of it, preparation too; None for as long as it takes.
        on_failure: called when the server ends them, which the engine may take a while to hear.
        on_end: called when they have ended, or when it is settled that they never begin.

    Attributes:
        handles: one per prompt, once they are queued.
        queued: done when they are; it has the failure if that comes first.
        num_running: those the engine has not ended yet.
        failure: what the server ended them with, such as the time limit. The engine and the workers, which may hang,
            are not waited for.
        is_given_up: nobody wants them any more.
    """

    def __init__(
        self,
        place: Place,
        timeout_s: float | None,
        on_failure: Callable[[], None],
        on_end: Callable[[], None],
        *,
        is_joint: bool = True,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.handles: list[RequestHandle] = []
        self.queued: asyncio.Future[None] = loop.create_future()
        self.failure: ApiError | None = None
        self.num_running = 0
        self.is_given_up = False
        self._is_joint = is_joint
        self._place = place
        self._timeout_s = timeout_s
        self._on_failure = on_failure
        self._on_end = on_end
        self._chunks: deque[tuple[int, OutputChunk]] = deque()
        self._arrived = asyncio.Event()
        self._outputs: list[RequestOutput | None] = []
        self._ended = asyncio.Event()
        self._timer = None if timeout_s is None else loop.call_later(timeout_s, self._expire)

    @property
    def is_wanted(self) -> bool:
        """Somebody waits for them."""
        return self.failure is None and not self.is_given_up

    def queue(self, make: Make, llm: LLM) -> None:
        """On a worker: make the requests and queue them.

        Raises:
            GivenUpError: they were given up meanwhile.
            Exception: what `make` and `Preparation.prepare` raise; none is queued.
        """
        preparation = Preparation(llm.prepare, lambda: self.is_given_up)
        preparation.go_on()
        requests = [preparation.prepare(request) for request in make(preparation)]
        preparation.go_on()
        self.handles = llm.submit_requests(requests)
        if self.is_given_up:  # since we looked; `abort` sets this before it looks at the handles, so one of us has both
            self.abort()

    def begin(self) -> None:
        """They are queued, and their chunks will come."""
        self.num_running = len(self.handles)
        self._outputs = [None] * len(self.handles)
        self.queued.set_result(None)

    async def outputs(self) -> list[RequestOutput]:
        """All of them, in order, once they have ended; failures inside (see `raise_failure`).

        Raises:
            ApiError: the server has ended them.
        """
        await self._ended.wait()
        if self.failure is not None:
            raise self.failure
        return [output for output in self._outputs if output is not None]

    async def succeeded(self) -> list[RequestOutput]:
        """All of them, in order.

        Raises:
            RametError: one failed; the others are cancelled.
            ApiError: the server has ended them.
        """
        outputs = await self.outputs()
        for output in sorted(outputs, key=_is_aborted):  # what was cancelled is not why
            self.raise_failure(output)
        return outputs

    def raise_failure(self, output: RequestOutput) -> None:
        """
        Raises:
            RametError: the request failed.
            ApiError: the server has ended it.
        """
        if output.error is not None:
            raise self.failure or output.error

    async def chunks(self) -> AsyncIterator[tuple[int, OutputChunk]]:
        """What every step adds: the index of the prompt, and the chunk. Only for requests that were submitted to be
        streamed. The last chunk of each has its output, which holds no failure if the requests are joint.

        Raises:
            RametError: one failed of requests that are joint.
            ApiError: the server has ended them.
        """
        num_open = len(self.handles)
        while num_open:
            if not self._chunks and self.failure is None:
                self._arrived.clear()
                await self._arrived.wait()
            if self.failure is not None:
                raise self.failure
            idx, chunk = self._chunks.popleft()
            if chunk.output is not None:
                num_open -= 1
                if self._is_joint:
                    self.raise_failure(chunk.output)
            yield idx, chunk

    def abort(self) -> None:
        """Cancel what still runs, and what has yet to be queued. Idempotent."""
        self.is_given_up = True
        for handle in self.handles:
            handle.abort()

    def take(self, idx: int, chunk: OutputChunk) -> None:
        """A chunk has come."""
        if chunk.output is not None:
            self._outputs[idx] = chunk.output
            self.num_running -= 1
            if chunk.output.error is not None and self._is_joint:
                self.abort()
            if self.num_running == 0:
                self.end()
        self._chunks.append((idx, chunk))
        self._arrived.set()

    def fail(self, failure: ApiError) -> None:
        """End them now, whatever the engine does; their place is free once it has let go of them, or the worker that
        makes them has. Nothing happens if they have ended."""
        if not self._ended.is_set():
            self.failure = failure
            self.abort()
            self._on_failure()
            self._ended.set()
            self._arrived.set()
            if not self.queued.done():
                self.queued.set_exception(failure)

    def end(self) -> None:
        """The engine has ended them, or they are not queued and will not be. Idempotent."""
        self._place.free()
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set()
        self._on_end()

    def _expire(self) -> None:
        self.fail(timed_out(self._timeout_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def _is_aborted(output: RequestOutput) -> bool:
    return isinstance(output.error, RequestAbortedError)
