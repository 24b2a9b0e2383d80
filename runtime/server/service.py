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
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from ..engine import Engine
from ..engine_loop import RequestHandle
from ..llm import LLM
from ..outputs import OutputChunk, RequestOutput
from ..request import Request
from .admission import Admission, Place
from .config import ServerConfig
from .errors import ApiError, as_api_error
from .live_names import LiveNames, NamedRequests
from .profile import Profile
from .workers import FairWorkers

T = TypeVar("T")
Finished = Callable[[RequestOutput], None]
_NUM_WORKERS = 4
_MAX_WAITING_ASIDES = 64
"""Of each tenant."""
_CHARS_PER_TOKEN = 32
"""No text that means anything has so many on average."""


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
        num_running: those the engine has not ended yet.
        failure: what the server ended them with, such as the time limit. The engine, which may hang, is not waited for.
    """

    def __init__(
        self, handles: list[RequestHandle], place: Place, timeout_s: float | None, *, is_joint: bool = True
    ) -> None:
        self.handles = handles
        self.failure: ApiError | None = None
        self._is_joint = is_joint
        self._place = place
        self._timeout_s = timeout_s
        self.num_running = len(handles)
        self._chunks: deque[tuple[int, OutputChunk]] = deque()
        self._arrived = asyncio.Event()
        self._outputs: list[RequestOutput | None] = [None] * len(handles)
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._timer = None if timeout_s is None else loop.call_later(timeout_s, self._expire)

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
        if output.error is not None:
            raise self.failure or as_api_error(output.error, output.request_id) from output.error

    async def chunks(self) -> AsyncIterator[tuple[int, OutputChunk]]:
        """What every step adds: the index of the prompt, and the chunk. Only for requests that were submitted to be
        streamed. The last chunk of each has its output, which holds no failure if the requests are joint.

        Raises:
            ApiError: one failed of requests that are joint.
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
        """Cancel what still runs. Idempotent."""
        for handle in self.handles:
            handle.abort()

    def take(self, idx: int, chunk: OutputChunk) -> None:
        """On the loop: a chunk has come."""
        if chunk.output is not None:
            self._outputs[idx] = chunk.output
            self.num_running -= 1
            if chunk.output.error is not None and self._is_joint:
                self.abort()
            if self.num_running == 0:
                self._end()
        self._chunks.append((idx, chunk))
        self._arrived.set()

    def fail(self, failure: ApiError) -> None:
        """On the loop: end them now, whatever the engine does; their place is free once it has let go of them. Nothing
        happens if they have ended."""
        if not self._ended.is_set():
            self.failure = failure
            self.abort()
            self._ended.set()
            self._arrived.set()

    def _end(self) -> None:
        self._place.free()
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set()

    def _expire(self) -> None:
        limit = f"the request took more than {self._timeout_s:g} s, the limit of this server"
        self.fail(ApiError(504, limit, code="timeout"))

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
        profile: the one that is being written, if there is one.
        grpc_port: where gRPC listens, once it does.
        readers: for the bodies of requests, before anything is known of them.
        asides: for what tokenises and asks nothing of the engine. No request for it waits for them.
    """

    def __init__(self, llm: LLM, config: ServerConfig) -> None:
        self.llm = llm
        self.config = config
        self.served_model_names = config.served_model_names or (llm.model_name,)
        self.admission = Admission(llm.config.max_num_seqs, config.max_waiting_sequences)
        self.finished: list[Finished] = []
        self.profile: Profile | None = None
        self.grpc_port: int | None = None
        is_shared = config.num_tenants > 1
        self.readers = FairWorkers("ramet-read", 2, is_shared=is_shared)
        self.asides = FairWorkers("ramet-aside", 2, is_shared=is_shared, max_waiting=_MAX_WAITING_ASIDES)
        self._workers = FairWorkers("ramet-prepare", _NUM_WORKERS, is_shared=is_shared)
        self._compilers = FairWorkers("ramet-compile", _NUM_WORKERS, is_shared=is_shared)
        self._helpers = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="ramet-help")
        self._bridge: ChunkBridge | None = None
        self._names = LiveNames()
        self._running: set[LiveRequests] = set()

    def start(self) -> None:
        """Take the running event loop for everything from now on."""
        self._bridge = ChunkBridge(asyncio.get_running_loop())

    def close(self) -> None:
        """Let the workers end. The LLM is its owner's."""
        for pool in (self.readers, self.asides, self._workers, self._compilers):
            pool.shutdown()
        self._helpers.shutdown(wait=False, cancel_futures=True)

    async def call(self, function: Callable[[], T]) -> T:
        """Run something that takes its time, on a worker; what takes long has its own workers."""
        return await asyncio.get_running_loop().run_in_executor(self._helpers, function)

    def ask(self, question: Callable[[Engine], T]) -> asyncio.Future[T]:
        """On the loop: have the engine answer between two steps. The future stays open as long as a step hangs, and for
        ever if the engine has stopped; it has what `question` raises."""
        bridge = self._bridge
        assert bridge is not None, "start() comes first"
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(value: T | None, error: Exception | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(cast(T, value))

        def put(engine: Engine) -> None:
            value: T | None = None
            failure: Exception | None = None
            try:
                value = question(engine)
            except Exception as error:
                failure = error
            bridge.post(lambda: settle(value, failure))

        self.llm.tell(put)
        return answer

    def check_prompt_len(self, num_chars: int, param: str) -> None:
        """To be asked before a text is tokenised, which takes long for a long one.

        Raises:
            ApiError: it is too long.
        """
        most = self.config.max_prompt_chars or _CHARS_PER_TOKEN * (self.llm.max_context_len + 1)
        if num_chars > most:
            raise ApiError(
                400,
                f"{param} has {num_chars} characters, and this server tokenises {most} at a time: the model's context "
                f"has {self.llm.max_context_len} tokens; shorten it, or start the server with --max-prompt-chars",
                param=param,
            )

    async def submit(
        self,
        make: Callable[[], list[Request]],
        num_sequences: int,
        *,
        tenant: str = "",
        is_streamed: bool = False,
        is_constrained: bool = False,
        is_joint: bool = True,
        name: tuple[str, str | Sequence[str] | None] | None = None,
    ) -> LiveRequests:
        """Take a place, make the requests, and queue them. Use what it returns as `async with`.

        Args:
            make: runs on a worker: renders, tokenises, and builds Requests.
            num_sequences: how many samples they will be, all together.
            tenant: whose it is: no tenant gets all workers.
            is_streamed: chunks are wanted, not only the outputs.
            is_constrained: there is a grammar to compile, which may take a second: it must not hold up others.
            is_joint: one that fails cancels the others, and is the failure of all.
            name: tenant and id under which `abort` finds it, already while it is made; or an id for each prompt. None
                for the id: only who aborts all of the tenant's finds it.

        Raises:
            ApiError: 429 or 503, there is no place, or the engine is not well; 409, the name is in use.
            InvalidRequestError: a request is refused, and none is queued.
        """
        assert self._bridge is not None, "start() comes first"
        self._check_engine()
        named = self._names.take(*name) if name is not None else None
        try:
            place = self.admission.take(num_sequences)
            pool = self._compilers if is_constrained else self._workers
            handles = await self._queued(pool.start(tenant, lambda: self.llm.submit_requests(make())), place)
        except BaseException:
            if named is not None:
                named.free()
            raise
        live = LiveRequests(handles, place, self.config.request_timeout_s, is_joint=is_joint)
        self._running.add(live)
        if named is not None:
            named.bind(handles)
        for idx, handle in enumerate(handles):
            self._follow(live, idx, handle, named, is_streamed=is_streamed)
        return live

    async def _queued(self, queued: asyncio.Future[list[RequestHandle]], place: Place) -> list[RequestHandle]:
        """The requests, made and queued by a worker. The place is free again if they are not."""
        try:
            return await asyncio.shield(queued)
        except asyncio.CancelledError:
            queued.add_done_callback(lambda done: _give_up(done, place))
            raise
        except BaseException:
            place.free()
            raise

    def end_all(self, failure: ApiError) -> int:
        """On the loop: end every request now, with this as its answer. Returns how many there were."""
        running = [live for live in self._running if live.failure is None]
        for live in running:
            live.fail(failure)
        return len(running)

    def engine_fault(self) -> str | None:
        """What is wrong with the engine, None if it is well. Waits for nothing."""
        pulse = self.llm.pulse()
        if not pulse.is_alive:
            return "the engine has stopped; the server must be started anew"
        if pulse.busy_seconds > self.config.step_timeout_s:
            return (
                f"the engine hangs: a step has been running for {pulse.busy_seconds:.0f} s, "
                f"and none may take more than {self.config.step_timeout_s:g} s"
            )
        return None

    def _check_engine(self) -> None:
        fault = self.engine_fault()
        if fault is not None:
            raise ApiError(503, fault, code="engine_stopped", retry_after_s=5.0)

    def abort(self, tenant: str, request_id: str | None) -> int:
        """Cancel the request of this name, or all of the tenant's. Returns how many there were."""
        return self._names.abort(tenant, request_id)

    def _follow(
        self, live: LiveRequests, idx: int, handle: RequestHandle, named: NamedRequests | None, *, is_streamed: bool
    ) -> None:
        bridge = self._bridge
        assert bridge is not None

        def take(chunk: OutputChunk) -> None:
            if chunk.output is not None:
                for listener in self.finished:
                    listener(chunk.output)
            live.take(idx, chunk)
            if live.num_running == 0:
                self._running.discard(live)
                if named is not None:
                    named.free()

        def on_chunk(chunk: OutputChunk) -> None:
            if is_streamed or chunk.output is not None:
                bridge.post(lambda: take(chunk))

        handle.add_chunk_callback(on_chunk)


def _give_up(queued: asyncio.Future[Any], place: Place) -> None:
    """The client left while its requests were made."""
    place.free()
    if not queued.cancelled() and queued.exception() is None:
        for handle in queued.result():
            handle.abort()
