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
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar, cast

from ..engine import Engine
from ..engine_loop import RequestHandle
from ..llm import LLM
from ..outputs import OutputChunk, RequestOutput
from ..request import Request
from .admission import Admission
from .config import ServerConfig
from .errors import ApiError, shutting_down
from .live_names import LiveNames, NamedRequests
from .live_requests import LiveRequests, timed_out
from .tenant import Tenants
from .workers import FairWorkers

T = TypeVar("T")
Finished = Callable[[RequestOutput], None]
_NUM_WORKERS = 4
_MAX_WAITING_ASIDES = 64
"""Of each tenant."""
_CHARS_PER_TOKEN = 32
"""No text that means anything has so many on average."""
_WATCH_SECONDS = 0.1
"""How often it is looked after an engine that somebody waits for."""


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


class EngineService:
    """One LLM for many HTTP requests. `start` is called on the loop that serves them.

    Args:
        tenants: those of `config`, if they have been made already.

    Attributes:
        llm: the model and its engine.
        tenants: who may use it.
        admission: who may come in, and how many are.
        finished: called on the loop with every output, in good and in bad; for metrics.
        grpc_port: where gRPC listens, once it does.
    """

    def __init__(self, llm: LLM, config: ServerConfig, tenants: Tenants | None = None) -> None:
        self.llm = llm
        self.config = config
        self.tenants = tenants or Tenants(config)
        self.served_model_names = config.served_model_names or (llm.model_name,)
        self.admission = Admission(llm.config.max_num_seqs, config.max_waiting_sequences)
        self.finished: list[Finished] = []
        self.grpc_port: int | None = None
        is_shared = config.num_tenants > 1
        self._readers = FairWorkers("ramet-read", 2, is_shared=is_shared)
        self._asides = FairWorkers("ramet-aside", 2, is_shared=is_shared, max_waiting=_MAX_WAITING_ASIDES)
        self._workers = FairWorkers("ramet-prepare", _NUM_WORKERS, is_shared=is_shared)
        self._compilers = FairWorkers("ramet-compile", _NUM_WORKERS, is_shared=is_shared)
        self._helpers = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="ramet-help")
        self._bridge: ChunkBridge | None = None
        self._names = LiveNames()
        self._running: set[LiveRequests] = set()
        self._calls: set[asyncio.Future[Any]] = set()

    def start(self) -> None:
        """Take the running event loop for everything from now on."""
        self._bridge = ChunkBridge(asyncio.get_running_loop())

    def close(self) -> None:
        """Let the workers end. The LLM is its owner's."""
        for pool in (self._readers, self._asides, self._workers, self._compilers):
            pool.shutdown()
        self._helpers.shutdown(wait=False, cancel_futures=True)

    async def call(self, function: Callable[[], T]) -> T:
        """Run something that takes a little time on a worker. It must not wait for the engine, whose step may hang, and
        the workers with it: that is what `ask_while_well` is for.

        Raises:
            ApiError: 504, it took too long, or 503, the server ends; what it comes to then is dropped.
        """
        return await self._result(asyncio.get_running_loop().run_in_executor(self._helpers, function))

    async def call_aside(self, tenant: str, function: Callable[[], T]) -> T:
        """Run something that tokenises and asks nothing of the engine. No request for the engine waits for it.

        Raises:
            ApiError: as `call`; or 429, too much of this tenant's is waiting.
        """
        return await self._result(self._asides.start(tenant, function).result)

    async def read(self, tenant: str, function: Callable[[], T]) -> T:
        """Run what makes objects of the body of a request.

        Raises:
            ApiError: as `call`.
        """
        return await self._result(self._readers.start(tenant, function).result)

    async def _result(self, work: asyncio.Future[T]) -> T:
        self._calls.add(work)
        try:
            done, _ = await asyncio.wait((work,), timeout=self.config.request_timeout_s)
            if not done:
                raise timed_out(self.config.request_timeout_s)
            if work.cancelled():
                raise shutting_down()
            return work.result()
        finally:
            work.cancel()
            self._calls.discard(work)

    def ask(self, question: Callable[[Engine], T]) -> asyncio.Future[T]:
        """On the loop: have the engine answer between two steps. The future stays open as long as a step hangs, and for
        ever if the engine has stopped; it has what `question` raises. One that is cancelled is not asked any more."""
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
            if answer.cancelled():
                return
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

    async def ask_while_well(self, question: Callable[[Engine], T]) -> T:
        """What the engine answers between two steps. It may be asked even if this raises.

        Raises:
            ApiError: 503, the engine is not well, or has ceased to be so.
        """
        self._check_engine()
        return await self.while_well(self.ask(question))

    async def while_well(self, awaited: Awaitable[T]) -> T:
        """Wait for something of the engine's, which is cancelled where this raises.

        Raises:
            ApiError: 503, the engine has ceased to be well.
        """
        waiting = asyncio.ensure_future(awaited)
        try:
            while not (await asyncio.wait((waiting,), timeout=_WATCH_SECONDS))[0]:
                self._check_engine()
            return waiting.result()
        finally:
            waiting.cancel()

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
        except ApiError:
            if named is not None:
                named.free()
            raise

        def forget() -> None:
            self._running.discard(live)
            if named is not None:
                named.free()

        live = LiveRequests(place, self.config.request_timeout_s, forget, is_joint=is_joint)
        self._running.add(live)
        pool = self._compilers if is_constrained else self._workers
        making = pool.start(tenant, lambda: live.queue(make, self.llm.submit_requests))
        making.result.add_done_callback(lambda done: self._begin(live, done, named, is_streamed=is_streamed))
        try:
            await live.queued
        except BaseException:
            live.abort()
            making.drop()
            if named is not None:
                named.free()
            raise
        return live

    @property
    def is_answering(self) -> bool:
        """Somebody waits for the engine, or for what is made for it."""
        return any(live.is_wanted for live in self._running)

    def end_all(self) -> int:
        """On the loop: end every request, those too that are being made, because the server ends. Returns for how many
        of them somebody waited."""
        wanted = [live for live in self._running if live.is_wanted]
        for live in wanted:
            is_made = live.queued.done()
            live.fail(shutting_down())
            if not is_made:  # the loop may be closed when the worker is done
                live.end()
        return len(wanted)

    def end_calls(self) -> None:
        """On the loop: whoever waits for a worker is told that the server ends."""
        for work in self._calls:
            work.cancel()

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

    def _begin(
        self, live: LiveRequests, made: asyncio.Future[None], named: NamedRequests | None, *, is_streamed: bool
    ) -> None:
        """A worker is done with them."""
        failure = shutting_down() if made.cancelled() else made.exception()
        if failure is None and not live.queued.done():
            live.begin()
            if named is not None:
                named.bind(live.handles)
            for idx, handle in enumerate(live.handles):
                self._follow(live, idx, handle, is_streamed=is_streamed)
            return
        if not live.queued.done():
            assert failure is not None
            live.queued.set_exception(failure)
        live.end()

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
