"""CallLoop: one thread with an event loop, on which all calls of a backend run, a bounded number at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ..errors import InvalidProgramError
from ..generation import GenerateResult, Generation
from ..handle import Handle
from .errors import BackendClosedError, CallCancelledError

T = TypeVar("T")

MAX_CONCURRENCY = 1000
"""As many connections as the SDKs keep."""


class CallLoop:
    """Runs coroutines that settle handles. Every method may be called from any thread.

    Args:
        name: of the thread.
        max_concurrency: more calls than this wait for one of them to end.
        on_close: run as the last thing on the loop.

    Raises:
        InvalidProgramError: max_concurrency is out of range.
    """

    def __init__(self, name: str, max_concurrency: int, on_close: Callable[[], Awaitable[None]]) -> None:
        if isinstance(max_concurrency, bool) or not isinstance(max_concurrency, int):
            raise InvalidProgramError(f"max_concurrency={max_concurrency!r} must be an integer")
        if not 1 <= max_concurrency <= MAX_CONCURRENCY:
            raise InvalidProgramError(f"max_concurrency={max_concurrency} must lie in [1, {MAX_CONCURRENCY}]")
        self._on_close = on_close
        self._lock = threading.RLock()  # the garbage collector may call `stop` inside any method
        self._is_closed = False
        self._tasks: dict[Handle[Any], asyncio.Task[Any]] = {}
        self._slots = asyncio.Semaphore(max_concurrency)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start_generation(self, work: Callable[[Generation], Coroutine[Any, Any, GenerateResult]]) -> Generation:
        """Run `work`, which may push text to the generation that it is given, and settle that with its outcome."""
        generation = Generation(on_cancel=lambda: self._cancel(generation))
        self._start(generation, lambda: work(generation))
        return generation

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Handle[T]:
        """Run `work` and settle a handle with its outcome.

        Raises:
            BackendClosedError: the loop was closed.
        """
        handle: Handle[T] = Handle(on_cancel=lambda: self._cancel(handle))
        self._start(handle, work)
        return handle

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def stop(self) -> None:
        """Have the thread cancel what runs, and end. Does not wait for it. Idempotent."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)

    def close(self) -> None:
        """`stop`, and wait until the thread has ended, unless it is this one. Idempotent."""
        self.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _start(self, handle: Handle[T], work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        with self._lock:
            if self._is_closed:
                raise BackendClosedError("the backend is closed: make a new one")
            self._loop.call_soon_threadsafe(self._launch, handle, work)

    def _launch(self, handle: Handle[T], work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        if handle.is_cancelled:
            handle.fail(CallCancelledError("the call was cancelled before it was sent"))
            return
        task = self._loop.create_task(self._in_turn(work))
        self._tasks[handle] = task
        task.add_done_callback(lambda done: self._settle(handle, done))

    async def _in_turn(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with self._slots:
            return await work()

    def _settle(self, handle: Handle[T], task: asyncio.Task[T]) -> None:
        del self._tasks[handle]
        if task.cancelled():
            handle.fail(CallCancelledError("the call was cancelled"))
            return
        error = task.exception()
        if error is not None:
            handle.fail(error)
        else:
            handle.finish(task.result())

    def _cancel(self, handle: Handle[Any]) -> None:
        with self._lock:
            if not self._is_closed:  # else everything is cancelled anyway
                self._loop.call_soon_threadsafe(self._cancel_task, handle)

    def _cancel_task(self, handle: Handle[Any]) -> None:
        task = self._tasks.get(handle)
        if task is not None:
            task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in self._tasks.values():
            task.cancel()
        while self._tasks:  # what a settled handle sets off cannot start anything any more
            self._loop.run_until_complete(asyncio.gather(*self._tasks.values(), return_exceptions=True))
        self._loop.run_until_complete(self._on_close())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
