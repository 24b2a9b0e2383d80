"""ChunkBridge: what the engine's thread has to say reaches an event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress

logger = logging.getLogger(__name__)


class ChunkBridge:
    """Carries calls from other threads to a loop, waking it once for all that come together: those of a step."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: deque[Callable[[], None]] = deque()
        self._is_awake = False

    def open(self) -> None:
        """Take the running loop for all calls from now on."""
        self._loop = asyncio.get_running_loop()

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop make the call. From any thread; does nothing once the loop is closed."""
        assert self._loop is not None, "open() comes first"
        self._calls.append(call)
        if not self._is_awake:
            self._is_awake = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_awake = False  # first: who posts from now on wakes the loop again
        while self._calls:
            try:
                self._calls.popleft()()
            except Exception:  # it must not hold up what others wait for
                logger.exception("What came of a step could not be passed on")
