"""WorkerPools: the threads that do what would hold up the event loop, apart by what they do: no kind waits for another.

read         makes objects of the bodies of requests
call         makes asks of objects, and texts of outputs: a little time each
call_aside   tokenises for who asks for nothing else
prepare      renders, tokenises and submits requests for the engine; where a grammar may take a second to compile,
             on threads of their own
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from .config import ServerConfig
from .errors import shutting_down, timed_out
from .workers import FairWorkers, Work

T = TypeVar("T")
_NUM_WORKERS = 4
_MAX_WAITING_ASIDES = 64
"""Of each tenant."""


class WorkerPools:
    """On one event loop. No function may wait for the engine, whose step may hang, and the worker with it."""

    def __init__(self, config: ServerConfig) -> None:
        is_shared = config.num_tenants > 1
        self._timeout_s = config.request_timeout_s
        self._readers = FairWorkers("ramet-read", 2, is_shared=is_shared)
        self._callers = FairWorkers("ramet-call", _NUM_WORKERS, is_shared=is_shared)
        self._asides = FairWorkers("ramet-aside", 2, is_shared=is_shared, max_waiting=_MAX_WAITING_ASIDES)
        self._preparers = FairWorkers("ramet-prepare", _NUM_WORKERS, is_shared=is_shared)
        self._compilers = FairWorkers("ramet-compile", _NUM_WORKERS, is_shared=is_shared)
        self._awaited: set[asyncio.Future[Any]] = set()

    async def read(self, tenant: str, function: Callable[[], T]) -> T:
        """Run what makes objects of the body of a request.

        Raises:
            ApiError: as `call`.
        """
        return await self._result(self._readers.start(tenant, function))

    async def call(self, tenant: str, function: Callable[[], T]) -> T:
        """Run something that takes a little time.

        Args:
            tenant: the name of the one it is done for.

        Raises:
            ApiError: 504, it took too long, or 503, the server ends; what it comes to then is dropped.
        """
        return await self._result(self._callers.start(tenant, function))

    async def call_aside(self, tenant: str, function: Callable[[], T]) -> T:
        """Run something that tokenises and asks nothing of the engine. No request for the engine waits for it.

        Raises:
            ApiError: as `call`; or 429, too much of this tenant's is waiting.
        """
        return await self._result(self._asides.start(tenant, function))

    def prepare(self, tenant: str, function: Callable[[], T], *, is_constrained: bool) -> Work[T]:
        """Have requests made for the engine. Whoever asks for it sees to its time limit.

        Args:
            is_constrained: there is a grammar to compile: it must not hold up those without.
        """
        return (self._compilers if is_constrained else self._preparers).start(tenant, function)

    def end_calls(self) -> None:
        """Whoever waits for a worker is told that the server ends."""
        for result in self._awaited:
            result.cancel()

    def close(self) -> None:
        """Let the threads end; what waits is cancelled."""
        for pool in (self._readers, self._callers, self._asides, self._preparers, self._compilers):
            pool.shutdown()

    async def _result(self, work: Work[T]) -> T:
        result = work.result
        self._awaited.add(result)
        try:
            done, _ = await asyncio.wait((result,), timeout=self._timeout_s)
            if not done:
                raise timed_out(self._timeout_s)
            if result.cancelled():
                raise shutting_down()
            return result.result()
        finally:
            result.cancel()
            self._awaited.discard(result)
