"""ReplyStream: a reply piece by piece, which settles the conversation the moment that nobody reads it any more.

A generator would not do: one that was never started runs no `finally` when it is dropped, and an asynchronous one that
is left early is closed by the event loop some time later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

from .reply import PendingReply


class ReplyStream(Iterator[str]):
    """The pieces of a reply that was sent."""

    def __init__(self, pending: PendingReply) -> None:
        self._pending = pending
        self._pieces = pending.chunks()
        self._is_started = False
        self._is_closed = False

    def __next__(self) -> str:
        if self._is_closed:
            raise StopIteration
        self._is_started = True
        try:
            return next(self._pieces)
        except BaseException:
            self._is_closed = True
            self._pending.abandon()  # if it is not at its end
            raise

    def close(self) -> None:
        """Stop the reply and keep what was seen of it; if nothing was read, it was never asked. Idempotent."""
        self._is_closed = True
        _leave(self._pending, is_started=self._is_started)

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


class AsyncReplyStream(AsyncIterator[str]):
    """`ReplyStream` for `async for`. The reply is sent for when the first piece is."""

    def __init__(self, send: Callable[[], PendingReply]) -> None:
        self._send = send
        self._pending: PendingReply | None = None
        self._pieces: AsyncIterator[str] | None = None
        self._is_closed = False

    async def __anext__(self) -> str:
        if self._is_closed:
            raise StopAsyncIteration
        if self._pieces is None:
            self._pending = self._send()
            self._pieces = self._pending.achunks()
        assert self._pending is not None
        try:
            return await anext(self._pieces)
        except BaseException:
            self._is_closed = True
            self._pending.abandon()
            raise

    async def aclose(self) -> None:
        """Stop the reply and keep what was seen of it. Idempotent."""
        self._leave()

    def __del__(self) -> None:
        with suppress(Exception):
            self._leave()

    def _leave(self) -> None:
        self._is_closed = True
        if self._pending is not None:
            _leave(self._pending, is_started=True)


def _leave(pending: PendingReply, *, is_started: bool) -> None:
    if pending.is_settled:
        return
    if is_started:
        pending.stop()
    else:
        pending.abandon()
