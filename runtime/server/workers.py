"""FairWorkers: threads that several tenants share. None gets so many that others have none."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .errors import ApiError

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Work(Generic[T]):
    """Something that a worker is to do.

    Attributes:
        result: what it comes to. Cancelled while it runs, it runs to its end all the same.
        is_begun: a worker has it.
    """

    function: Callable[[], T]
    result: asyncio.Future[T]
    is_begun: bool = False

    def drop(self) -> None:
        """It is not to be done any more, unless it has begun."""
        if not self.is_begun:
            self.result.cancel()


class FairWorkers:
    """Runs functions on threads. Used on one event loop.

    Args:
        name: of the threads.
        is_shared: there are several tenants: each gets half of the threads at most, and who has the fewest comes next.
        max_waiting: functions of one tenant that may wait for a thread; None for any number.
    """

    def __init__(self, name: str, num_workers: int, *, is_shared: bool, max_waiting: int | None = None) -> None:
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix=name)
        self._num_free = num_workers
        self._share = max(num_workers // 2, 1) if is_shared else num_workers
        self._max_waiting = max_waiting
        self._waiting: dict[str, deque[Work[Any]]] = {}
        self._num_running: Counter[str] = Counter()

    def start(self, tenant: str, function: Callable[[], T]) -> Work[T]:
        """Have a worker call `function`, as soon as it is the tenant's turn.

        Raises:
            ApiError: 429, too many of the tenant's are waiting.
        """
        waiting = self._waiting.get(tenant, deque())
        if self._max_waiting is not None and len(waiting) >= self._max_waiting:
            raise ApiError(
                429,
                f"{len(waiting)} requests of this kind are waiting, as many as may; try again later",
                code="server_full",
                retry_after_s=1.0,
            )
        work = Work(function, asyncio.get_running_loop().create_future())
        waiting.append(work)
        self._waiting[tenant] = waiting
        self._go_on()
        return work

    def shutdown(self) -> None:
        """Let threads end; what waits is cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for waiting in self._waiting.values():
            for work in waiting:
                work.result.cancel()
        self._waiting.clear()

    def _go_on(self) -> None:
        while self._num_free:
            able = [tenant for tenant in self._waiting if self._num_running[tenant] < self._share]
            if not able:
                return
            tenant = min(able, key=self._num_running.__getitem__)
            waiting = self._waiting.pop(tenant)
            work = waiting.popleft()
            if waiting:
                self._waiting[tenant] = waiting  # at the end: of those with as few it comes last
            if not work.result.done():
                self._run(tenant, work)

    def _run(self, tenant: str, work: Work[Any]) -> None:
        loop = asyncio.get_running_loop()
        try:
            running = self._pool.submit(work.function)
        except RuntimeError:  # shut down
            work.result.cancel()
            return
        work.is_begun = True
        self._num_free -= 1
        self._num_running[tenant] += 1

        def on_done(done: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._end, tenant, work, done)

        running.add_done_callback(on_done)

    def _end(self, tenant: str, work: Work[Any], done: Future[Any]) -> None:
        self._num_free += 1
        self._num_running[tenant] -= 1
        if not self._num_running[tenant]:
            del self._num_running[tenant]
        error = None if done.cancelled() else done.exception()
        if work.result.done():
            pass  # nobody waits for it any more
        elif done.cancelled():
            work.result.cancel()
        elif error is not None:
            work.result.set_exception(error)
        else:
            work.result.set_result(done.result())
        self._go_on()
