"""The threads that plain bodies run in when nobody's own thread is free for them: of `arun`, `astream` and batches.

A body holds a thread only while it runs; its calls go on without one. So a few threads serve thousands of programs
whose bodies do not read, and as many at a time as there are threads of those that do.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

NUM_BODY_THREADS = 48
"""How many plain bodies run at a time in one process. A bound, not a size: a thread is started when none is idle."""

T = TypeVar("T")


class BodyThreads:
    """A pool for each depth of nesting: a body that waits for other programs occupies a thread of its own pool, and
    these get theirs from the next one. So they never wait for the thread that waits for them."""

    def __init__(self, num_threads: int = NUM_BODY_THREADS) -> None:
        self._num_threads = num_threads
        self._lock = threading.Lock()
        self._pools: list[ThreadPoolExecutor] = []
        self._depth: contextvars.ContextVar[int] = contextvars.ContextVar("ramet_body_depth", default=0)

    def submit(self, body: Callable[[], T]) -> Future[T]:
        """Call `body` in a thread, in a copy of this context."""
        context = contextvars.copy_context()
        depth = context.get(self._depth, 0)
        context.run(self._depth.set, depth + 1)
        return self._pool(depth).submit(context.run, body)

    def _pool(self, depth: int) -> ThreadPoolExecutor:
        with self._lock:
            while len(self._pools) <= depth:
                name = f"ramet-bodies-{len(self._pools)}"
                self._pools.append(ThreadPoolExecutor(self._num_threads, thread_name_prefix=name))
            return self._pools[depth]


body_threads = BodyThreads()
