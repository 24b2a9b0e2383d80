"""From callbacks of other threads to an asyncio event loop: what a coroutine waits with.

Whoever settles a call runs callbacks in its own thread. `Signals` carries them to the loop's thread, and wakes the loop
once for all that come before it looks.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from .callbacks import Callback, Forget, nothing_to_forget
from .errors import ReadTimeoutError

Subscribe = Callable[[Callback], Forget]
"""Takes a callback and calls it once, from any thread, perhaps at once."""


class LoopSignals:
    """The way into one event loop from any thread. `call` takes no lock and never blocks: it may be used under any."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._callbacks: deque[Callable[[], None]] = deque()
        self._is_awake = False

    def is_of(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._loop is loop

    def call(self, callback: Callable[[], None]) -> None:
        """Have the loop call `callback` soon. Nothing happens if the loop is closed: then nobody waits any more."""
        self._callbacks.append(callback)
        if self._is_awake:
            return
        self._is_awake = True
        try:
            self._loop.call_soon_threadsafe(self._run)
        except RuntimeError:
            self._callbacks.clear()

    def _run(self) -> None:
        self._is_awake = False  # before the callbacks are taken: one that comes now wakes the loop again
        while self._callbacks:
            self._callbacks.popleft()()


class _ThreadLoop(threading.local):
    """The loop that runs in a thread, as far as something was awaited in it."""

    def __init__(self) -> None:
        self._signals: LoopSignals | None = None

    def signals(self) -> LoopSignals:
        loop = asyncio.get_running_loop()
        if self._signals is None or not self._signals.is_of(loop):
            self._signals = LoopSignals(loop)
        return self._signals


_thread_loop = _ThreadLoop()


def running_loop_signals() -> LoopSignals:
    """The signals of the loop that runs in this thread."""
    return _thread_loop.signals()


class Bell:
    """What one coroutine waits for and any thread may ring. Rings that come before the coroutine looks are one.

    The coroutine clears it, looks whether what it waits for is there, and waits if not.
    """

    def __init__(self) -> None:
        self._signals = running_loop_signals()
        self._is_rung = False
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake the waiting coroutine. From any thread; never blocks."""
        if not self._is_rung:
            self._is_rung = True
            self._signals.call(self._event.set)

    def clear(self) -> None:
        self._event.clear()
        self._is_rung = False

    async def wait(self) -> None:
        """Until it has been rung since `clear`."""
        await self._event.wait()


async def happened(subscribe: Subscribe) -> None:
    """Until the callback that `subscribe` is given was called."""
    signals = running_loop_signals()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle() -> None:
        if not future.done():
            future.set_result(None)

    forget = subscribe(lambda: signals.call(settle))
    try:
        await future
    except asyncio.CancelledError:
        forget()  # a wait that was given up leaves nothing behind
        raise


async def settled(outcome: Future[Any]) -> None:
    """Until the future has an outcome."""

    def subscribe(callback: Callback) -> Forget:
        outcome.add_done_callback(lambda _: callback())
        return nothing_to_forget

    await happened(subscribe)


@asynccontextmanager
async def time_limit(timeout: float | None, message: Callable[[], str]) -> AsyncIterator[None]:
    """Raises ReadTimeoutError with the message if the block takes longer than `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise ReadTimeoutError(message()) from None
