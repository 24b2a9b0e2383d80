"""LoopThread: a coroutine that runs to its end in an event loop in a thread of its own, for callers that block."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Generic, TypeVar

HEARTBEAT_S = 1.0
"""A thread that waits looks up this often: it may not have noticed an interrupt that came just as it began to wait."""

T = TypeVar("T")


class LoopThread(Generic[T]):
    """Runs `main()` from construction on, in a copy of the caller's context."""

    def __init__(self, main: Callable[[], Coroutine[Any, Any, T]], name: str) -> None:
        self._main = main
        self._outcome: Future[T] = Future()
        self._lock = threading.RLock()  # a garbage collection inside it may cancel
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            result = asyncio.run(self._run_task())
        except BaseException as error:
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(result)

    async def _run_task(self) -> T:
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.create_task(self._main())
            if self._is_cancelled:
                self._task.cancel()
        return await self._task

    def cancel(self, *, has_to_wait: bool = True) -> None:
        """Cancel the coroutine, if it still runs, and wait for its end, if told to and not in its own thread."""
        with self._lock:
            self._is_cancelled = True
            if self._loop is not None and self._task is not None and not self._outcome.done():
                with suppress(RuntimeError):  # the loop has just been closed: the coroutine is over
                    self._loop.call_soon_threadsafe(self._task.cancel)
        if has_to_wait and threading.current_thread() is not self._thread:
            self._outcome.exception()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the coroutine has ended, now if it has."""
        self._outcome.add_done_callback(lambda _: callback())

    def result(self) -> T:
        """What the coroutine returned or raised; blocks. If the wait is interrupted, the coroutine is cancelled."""
        try:
            while not wait([self._outcome], HEARTBEAT_S).done:
                pass
        except BaseException:
            self.cancel()
            raise
        return self._outcome.result()
