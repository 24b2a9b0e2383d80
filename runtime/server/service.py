"""EngineService: the engine as handlers on an event loop use it.

    handler (event loop)         workers                      engine thread
    --------------------         -------                      -------------
    submit --- a place ------->  make requests, submit ---->  steps
    async for chunk  <--------------- ChunkBridge <---------  chunks
    leaving the block ------------------------------------->  abort

Texts are rendered and tokenised, and constraints compiled, by workers: the loop never waits for any of it. A place is
taken before anything is done for a request, so that there is never more to do than the server has promised.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from ..engine_loop import RequestHandle
from ..llm import LLM
from ..outputs import OutputChunk, RequestOutput
from ..request import Request
from .admission import Admission
from .config import ServerConfig
from .errors import ApiError, as_api_error

T = TypeVar("T")
Finished = Callable[[RequestOutput], None]
_NUM_WORKERS = 4


class ChunkBridge:
    """Carries what the engine's thread has to say to an event loop, waking the loop once for all of a step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._messages: deque[Callable[[], None]] = deque()
        self._is_awake = False

    def post(self, message: Callable[[], None]) -> None:
        """Have the loop call `message`. From any thread; does nothing once the loop is closed."""
        self._messages.append(message)
        if not self._is_awake:
            self._is_awake = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_awake = False  # first: who posts from now on wakes the loop again
        while self._messages:
            self._messages.popleft()()


class LiveRequests:
    """What one HTTP request has asked of the engine. Leaving its block cancels what still runs.

    Attributes:
        handles: one per prompt.
        is_expired: it ran into the server's time limit, and was cancelled for that.
    """

    def __init__(self, handles: list[RequestHandle], on_end: Callable[[], None], timeout_s: float | None) -> None:
        self.handles = handles
        self.is_expired = False
        self._on_end = on_end
        self._timeout_s = timeout_s
        self._num_running = len(handles)
        self._chunks: asyncio.Queue[tuple[int, OutputChunk]] = asyncio.Queue()
        self._outputs: list[RequestOutput | None] = [None] * len(handles)
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._timer = None if timeout_s is None else loop.call_later(timeout_s, self._expire)

    async def outputs(self) -> list[RequestOutput]:
        """All of them, in order, once they have ended; failures inside (see `raise_failure`)."""
        await self._ended.wait()
        return [output for output in self._outputs if output is not None]

    async def succeeded(self) -> list[RequestOutput]:
        """All of them, in order.

        Raises:
            ApiError: one failed; the others are cancelled.
        """
        outputs = await self.outputs()
        for output in outputs:
            self.raise_failure(output)
        return outputs

    def raise_failure(self, output: RequestOutput) -> None:
        """
        Raises:
            ApiError: the request failed.
        """
        if output.error is None:
            return
        if self.is_expired:
            raise ApiError(
                504, f"the request took more than {self._timeout_s:g} s, the limit of this server", code="timeout"
            ) from output.error
        raise as_api_error(output.error, output.request_id) from output.error

    async def chunks(self) -> AsyncIterator[tuple[int, OutputChunk]]:
        """What every step adds: the index of the prompt, and the chunk. Only for requests that were submitted to be
        streamed. The last chunk of each has its output, and no failure.

        Raises:
            ApiError: one failed.
        """
        num_open = len(self.handles)
        while num_open:
            idx, chunk = await self._chunks.get()
            if chunk.output is not None:
                num_open -= 1
                self.raise_failure(chunk.output)
            yield idx, chunk

    def abort(self) -> None:
        """Cancel what still runs. Idempotent."""
        for handle in self.handles:
            handle.abort()

    def take(self, idx: int, chunk: OutputChunk) -> None:
        """On the loop: a chunk has come."""
        if chunk.output is not None:
            self._outputs[idx] = chunk.output
            self._num_running -= 1
            if chunk.output.error is not None:
                self.abort()
            if self._num_running == 0:
                self._end()
        self._chunks.put_nowait((idx, chunk))

    def _end(self) -> None:
        self._on_end()
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set()

    def _expire(self) -> None:
        self.is_expired = True
        self.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class EngineService:
    """One LLM for many HTTP requests. `start` is called on the loop that serves them.

    Attributes:
        llm: the model and its engine.
        admission: who may come in, and how many are.
        finished: called on the loop with every output, in good and in bad; for metrics.
    """

    def __init__(self, llm: LLM, config: ServerConfig) -> None:
        self.llm = llm
        self.config = config
        self.served_model_names = config.served_model_names or (llm.model_name,)
        self.admission = Admission(llm.config.max_num_seqs, config.max_waiting_sequences)
        self.finished: list[Finished] = []
        self._workers = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="ramet-prepare")
        self._compilers = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="ramet-compile")
        self._bridge: ChunkBridge | None = None
        self._named: dict[tuple[str, str], LiveRequests | None] = {}  # None: it is being made

    def start(self) -> None:
        """Take the running event loop for everything from now on."""
        self._bridge = ChunkBridge(asyncio.get_running_loop())

    def close(self) -> None:
        """Let the workers end. The LLM is its owner's."""
        for pool in (self._workers, self._compilers):
            pool.shutdown(wait=False, cancel_futures=True)

    async def call(self, function: Callable[[], T]) -> T:
        """Run something that takes its time, such as tokenising, on a worker."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function)

    async def submit(
        self,
        make: Callable[[], list[Request]],
        num_sequences: int,
        *,
        is_streamed: bool = False,
        is_constrained: bool = False,
        name: tuple[str, str] | None = None,
    ) -> LiveRequests:
        """Take a place, make the requests, and queue them. Use what it returns as `async with`.

        Args:
            make: runs on a worker: renders, tokenises, and builds Requests.
            num_sequences: how many samples they will be, all together.
            is_streamed: chunks are wanted, not only the outputs.
            is_constrained: there is a grammar to compile, which may take a second: it must not hold up others.
            name: tenant and id under which `abort` finds it.

        Raises:
            ApiError: 429 or 503, there is no place; 409, the name is in use.
            InvalidRequestError: a request is refused, and none is queued.
        """
        assert self._bridge is not None, "start() comes first"
        if name is not None and name in self._named:
            raise ApiError(409, f"rid={name[1]!r} is in use by a request that still runs", param="rid")
        place = self.admission.take(num_sequences)
        if name is not None:
            self._named[name] = None

        def leave() -> None:
            place.free()
            if name is not None:
                del self._named[name]

        pool = self._compilers if is_constrained else self._workers
        queued = asyncio.get_running_loop().run_in_executor(pool, lambda: self.llm.submit_requests(make()))
        try:
            handles = await asyncio.shield(queued)
        except asyncio.CancelledError:
            queued.add_done_callback(lambda done: _give_up(done, leave))
            raise
        except Exception:
            leave()
            raise
        live = LiveRequests(handles, leave, self.config.request_timeout_s)
        if name is not None:
            self._named[name] = live
        for idx, handle in enumerate(handles):
            self._follow(live, idx, handle, is_streamed=is_streamed)
        return live

    def abort(self, tenant: str, request_id: str | None) -> int:
        """Cancel the request of this name, or all of the tenant's. Returns how many there were."""
        found = [
            live
            for (owner, name), live in self._named.items()
            if live is not None and owner == tenant and (request_id is None or name == request_id)
        ]
        for live in found:
            live.abort()
        return len(found)

    def _follow(self, live: LiveRequests, idx: int, handle: RequestHandle, *, is_streamed: bool) -> None:
        bridge = self._bridge
        assert bridge is not None

        def take(chunk: OutputChunk) -> None:
            if chunk.output is not None:
                for listener in self.finished:
                    listener(chunk.output)
            live.take(idx, chunk)

        def on_chunk(chunk: OutputChunk) -> None:
            if is_streamed or chunk.output is not None:
                bridge.post(lambda: take(chunk))

        handle.add_chunk_callback(on_chunk)


def _give_up(queued: asyncio.Future[Any], leave: Callable[[], None]) -> None:
    """The client left while its requests were made."""
    leave()
    if not queued.cancelled() and queued.exception() is None:
        for handle in queued.result():
            handle.abort()
