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
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ..engine import Engine
from ..engine_loop import RequestHandle
from ..errors import EngineStoppedError
from ..llm import LLM
from ..outputs import OutputChunk, RequestOutput
from ..request import Request
from .admission import Admission
from .body_budget import BodyBudget
from .chunk_bridge import ChunkBridge
from .config import ServerConfig
from .errors import ApiError, shutting_down
from .live_names import LiveNames, NamedRequests
from .live_requests import LiveRequests, Make
from .tenant import Tenants
from .worker_pools import WorkerPools

T = TypeVar("T")
Finished = Callable[[Request, RequestOutput], None]
_CHARS_PER_TOKEN = 32
"""No text that means anything has so many on average."""
_WATCH_SECONDS = 0.1
"""How often it is looked after an engine that somebody waits for."""


class EngineService:
    """One LLM for many HTTP requests. `start` is called on the loop that serves them.

    Args:
        tenants: those of `config`, if they have been made already.

    Attributes:
        llm: the model and its engine.
        tenants: who may use it.
        admission: who may come in, and how many are.
        workers: for what would hold up the loop.
        bodies: how much of the requests may be in memory.
        finished: called on the loop with every request and its output, in good and in bad; for metrics.
        grpc_port: where gRPC listens, once it does.
    """

    def __init__(self, llm: LLM, config: ServerConfig, tenants: Tenants | None = None) -> None:
        self.llm = llm
        self.config = config
        self.tenants = tenants or Tenants(config)
        self.served_model_names = config.served_model_names or (llm.model_name,)
        self.admission = Admission(llm.config.max_num_seqs, config.max_waiting_sequences)
        self.workers = WorkerPools(config)
        self.bodies = BodyBudget(config.max_body_bytes, config.max_total_body_bytes)
        self.finished: list[Finished] = []
        self.grpc_port: int | None = None
        self._bridge = ChunkBridge()
        self._names = LiveNames()
        self._running: set[LiveRequests] = set()

    def start(self) -> None:
        """Take the running event loop for everything from now on."""
        self._bridge.open()

    def close(self) -> None:
        """Let the workers end. The LLM is its owner's."""
        self.workers.close()

    # -- asking the engine -------------------------------------------------------------------------------------------

    def ask(self, question: Callable[[Engine], T]) -> asyncio.Future[T]:
        """On the loop: have the engine answer between two steps. The future stays open as long as a step hangs; it has
        what `question` raises, or EngineStoppedError. One that is cancelled is not asked any more."""
        try:
            return asyncio.wrap_future(self.llm.ask_engine(question))
        except EngineStoppedError as error:
            unanswered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            unanswered.set_exception(error)
            return unanswered

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

    # -- requests ----------------------------------------------------------------------------------------------------

    @property
    def max_prompt_chars(self) -> int:
        """Characters that are tokenised at a time."""
        return self.config.max_prompt_chars or _CHARS_PER_TOKEN * (self.llm.max_context_len + 1)

    def check_prompt_len(self, num_chars: int, param: str) -> None:
        """To be asked before a text is tokenised, which takes long for a long one.

        Raises:
            ApiError: it is too long.
        """
        most = self.max_prompt_chars
        if num_chars > most:
            raise ApiError(
                400,
                f"{param} has {num_chars} characters, and this server tokenises {most} at a time: the model's context "
                f"has {self.llm.max_context_len} tokens; shorten it, or start the server with --max-prompt-chars",
                param=param,
            )

    async def submit(
        self,
        make: Make,
        num_sequences: int,
        *,
        tenant: str,
        name: str | Sequence[str] | None = None,
        is_streamed: bool = False,
        is_constrained: bool = False,
        is_joint: bool = True,
    ) -> LiveRequests:
        """Take a place, make the requests, and queue them. Use what it returns as `async with`.

        Args:
            make: runs on a worker: renders, tokenises, and builds Requests; it calls `go_on` of what it is given.
            num_sequences: how many samples they will be, all together.
            tenant: the name of the one whose they are.
            name: under which `abort` finds them, already while they are made; or one for each prompt. None: only who
                aborts all of the tenant's finds them.
            is_streamed: chunks are wanted, not only the outputs.
            is_constrained: there is a grammar to compile, which may take a second: it must not hold up others.
            is_joint: one that fails cancels the others, and is the failure of all.

        Raises:
            ApiError: 429 or 503, there is no place, or the engine is not well; 409, the name is in use.
            InvalidRequestError: a request is refused, and none is queued.
        """
        self._check_engine()
        named = self._names.take(tenant, name)
        try:
            place = self.admission.take(num_sequences)
        except ApiError:
            named.free()
            raise

        def forget() -> None:
            self._running.discard(live)
            named.free()

        live = LiveRequests(place, self.config.request_timeout_s, named.free, forget, is_joint=is_joint)
        self._running.add(live)
        making = self.workers.prepare(tenant, lambda: live.queue(make, self.llm), is_constrained=is_constrained)
        making.result.add_done_callback(lambda done: self._begin(live, done, named, is_streamed=is_streamed))
        try:
            await live.queued
        except BaseException:
            live.abort()
            making.drop()
            named.free()
            raise
        return live

    def abort(self, tenant: str, name: str | None) -> int:
        """Cancel the tenant's requests of this name, or all of the tenant's. Returns how many there were."""
        return self._names.abort(tenant, name)

    @property
    def is_answering(self) -> bool:
        """Somebody waits for the engine, or for what is made for it."""
        return any(live.is_wanted for live in self._running)

    @property
    def num_answering(self) -> int:
        """Requests for which somebody does."""
        return sum(live.is_wanted for live in self._running)

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

    def _begin(
        self, live: LiveRequests, made: asyncio.Future[None], named: NamedRequests, *, is_streamed: bool
    ) -> None:
        """A worker is done with them."""
        failure = shutting_down() if made.cancelled() else made.exception()
        if failure is None and not live.queued.done():
            live.begin()
            named.bind(live.handles)
            for idx, handle in enumerate(live.handles):
                self._follow(live, idx, handle, is_streamed=is_streamed)
            return
        if not live.queued.done():
            assert failure is not None
            live.queued.set_exception(failure)
        live.end()

    def _follow(self, live: LiveRequests, idx: int, handle: RequestHandle, *, is_streamed: bool) -> None:
        def take(chunk: OutputChunk) -> None:
            try:
                if chunk.output is not None:
                    for listener in self.finished:
                        listener(handle.request, chunk.output)
            finally:
                live.take(idx, chunk)

        def on_chunk(chunk: OutputChunk) -> None:
            if is_streamed or chunk.output is not None:
                self._bridge.post(lambda: take(chunk))

        handle.add_chunk_callback(on_chunk)
