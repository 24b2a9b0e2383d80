"""Answers that come piece by piece: server-sent events, which end properly whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError, reported
from .json_text import to_json

T = TypeVar("T")

Write = Callable[[bytes], Awaitable[None]]

DONE = b"data: [DONE]\n\n"
WRITE_EXTENSION = "ramet.write"
"""Where our HTTP/1.1 puts a Write, in the scope's extensions, for the pieces of a body between its start and its end.
For streams: a token on its way through every layer of the application costs more than all else that is done to it."""


def event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + to_json(data) + b"\n\n"


class EventStream(Response):
    """Sends events as they come. When the client is gone the iterator is closed at once.

    Nothing is sent before the first event is there: what `events` raises until then is an answer of its own, with the
    status that it has. So a request is submitted inside of `events`, where leaving frees it whatever happens.

    Args:
        events: yields at least one event, each whole, their last one too; closing it must free what it holds.
        end_of_error: the events that end the stream if `events` raises after its first.
        request_id: of this HTTP request, for the log.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        end_of_error: Callable[[ApiError], Iterable[bytes]],
        request_id: str,
    ) -> None:
        self._events = events
        self._end_of_error = end_of_error
        self._request_id = request_id
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = scope.get("extensions", {}).get(WRITE_EXTENSION) or _writer_by_messages(send)
        with suppress(ClientDisconnect, OSError):
            await unless_disconnected(receive, self._send_all(send, write))

    async def _send_all(self, send: Send, write: Write) -> None:
        async with aclosing(self._events) as events:  # type: ignore[type-var]
            first = await anext(events)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await write(first)
            try:
                async for piece in events:
                    await write(piece)
            except Exception as error:
                for piece in self._end_of_error(reported(error, self._request_id)):
                    await write(piece)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _writer_by_messages(send: Send) -> Write:
    async def write(piece: bytes) -> None:
        await send({"type": "http.response.body", "body": piece, "more_body": True})

    return write


async def unless_disconnected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client goes away. The request's body must have been read.

    Raises:
        ClientDisconnect: it did.
    """

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            if not task.done():
                task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def answer_unless_disconnected(http: HttpRequest, work: Awaitable[T]) -> T:
    """`unless_disconnected` for a handler of a route."""
    return await unless_disconnected(http.receive, work)
