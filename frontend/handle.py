"""Handle: a backend call under way. The backend settles it once; any thread may wait for it, watch it or give it up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from .errors import raise_interrupt

T = TypeVar("T")


class Handle(Generic[T]):
    """A call under way whose outcome is a T.

    The writer (the backend) calls `finish` or `fail` once, also after `cancel`. Readers call the rest.
    """

    def __init__(self, on_cancel: Callable[[], None] | None = None) -> None:
        """`on_cancel` is called at most once, when nobody wants the outcome any more; the writer must then still settle
        the handle, usually with `fail`."""
        self._future: Future[T] = Future()
        self._cancel_lock = threading.Lock()
        self._on_cancel = on_cancel
        self._is_cancelled = False

    def finish(self, result: T) -> None:
        """Settle with a result. Runs the callbacks in the calling thread."""
        self._future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Settle with an error. Runs the callbacks in the calling thread."""
        self._future.set_exception(error)

    def settle_with(self, make_result: Callable[[], T]) -> None:
        """Settle with what `make_result` returns, or raises."""
        try:
            result = make_result()
        except BaseException as error:
            self.fail(error)
            raise_interrupt(error)
        else:
            self.finish(result)

    @property
    def is_done(self) -> bool:
        return self._future.done()

    def result(self, timeout: float | None = None) -> T:
        """The outcome; blocks until it is there.

        Raises:
            TimeoutError: it is not there within `timeout` seconds.
            BaseException: what the backend failed with.
        """
        return self._future.result(timeout)

    def error(self) -> BaseException | None:
        """What it failed with; only to be called once done."""
        return self._future.exception(timeout=0)

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` once settled, or now if that has passed. It must not block or raise."""
        self._future.add_done_callback(lambda _: callback())

    @property
    def is_cancelled(self) -> bool:
        """Whether it was given up before it had an outcome."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Say that the outcome is no longer wanted."""
        with self._cancel_lock:
            self._is_cancelled = self._is_cancelled or not self._future.done()
            on_cancel, self._on_cancel = self._on_cancel, None
        if on_cancel is not None and not self._future.done():
            on_cancel()


def cancel_all(handles: Sequence[Handle[Any]]) -> None:
    """Say of all of them that the outcome is no longer wanted."""
    for handle in handles:
        handle.cancel()


def when_all_done(handles: Sequence[Handle[Any]], callback: Callable[[], None]) -> None:
    """Call `callback` once all of them are settled, or now if they are. It must not block or raise."""
    lock = threading.Lock()
    num_open = len(handles) + 1

    def one_done() -> None:
        nonlocal num_open
        with lock:
            num_open -= 1
            is_last = num_open == 0
        if is_last:
            callback()

    for handle in handles:
        handle.add_done_callback(one_done)
    one_done()
