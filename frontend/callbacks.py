"""Callbacks: who is to be told of something once, and may cease to want it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

Callback = Callable[[], None]

Forget = Callable[[], None]
"""Takes a callback back that has not been called. It may be called at any time, from any thread."""


class Callbacks:
    """Those that wait for one event. They must not block or raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[object, Callback] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, callback: Callback) -> Forget:
        """Have it called at the next `call`."""
        ticket = object()
        with self._lock:
            self._waiting[ticket] = callback
        return partial(self._forget, ticket)

    def _forget(self, ticket: object) -> None:
        with self._lock:
            self._waiting.pop(ticket, None)

    def call(self) -> None:
        """Call each of them, in order, and forget them."""
        with self._lock:
            callbacks, self._waiting = self._waiting, {}
        for callback in callbacks.values():
            callback()


def nothing_to_forget() -> None:
    """The Forget of a callback that was called at once, or that waits for what comes soon."""
