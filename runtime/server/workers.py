"""FairWorkers: threads that several tenants share. None gets so many that others have none."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import ApiError

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Job:
    function: Callable[[], Any]
    answer: asyncio.Future[Any]


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
        self._waiting: dict[str, deque[_Job]] = {}
        self._num_running: Counter[str] = Counter()

    def start(self, tenant: str, function: Callable[[], T]) -> asyncio.Future[T]:
        """What `function` returns or raises. Cancelled before it has a thread, it does not run.

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
        job = _Job(function, asyncio.get_running_loop().create_future())
        waiting.append(job)
        self._waiting[tenant] = waiting
        self._go_on()
        return job.answer

    def shutdown(self) -> None:
        """Let threads end; what waits is cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for waiting in self._waiting.values():
            for job in waiting:
                job.answer.cancel()
        self._waiting.clear()

    def _go_on(self) -> None:
        while self._num_free:
            able = [tenant for tenant in self._waiting if self._num_running[tenant] < self._share]
            if not able:
                return
            tenant = min(able, key=self._num_running.__getitem__)
            waiting = self._waiting.pop(tenant)
            job = waiting.popleft()
            if waiting:
                self._waiting[tenant] = waiting  # at the end: of those with as few it comes last
            if not job.answer.done():
                self._run(tenant, job)

    def _run(self, tenant: str, job: _Job) -> None:
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, job.function)
        except RuntimeError as error:  # shut down
            job.answer.set_exception(error)
            return
        self._num_free -= 1
        self._num_running[tenant] += 1
        running.add_done_callback(lambda done: self._end(tenant, job, done))

    def _end(self, tenant: str, job: _Job, done: asyncio.Future[Any]) -> None:
        self._num_free += 1
        self._num_running[tenant] -= 1
        if not self._num_running[tenant]:
            del self._num_running[tenant]
        error = None if done.cancelled() else done.exception()
        if job.answer.done():
            pass  # nobody waits for it any more
        elif done.cancelled():
            job.answer.cancel()
        elif error is not None:
            job.answer.set_exception(error)
        else:
            job.answer.set_result(done.result())
        self._go_on()
