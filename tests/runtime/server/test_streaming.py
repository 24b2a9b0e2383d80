"""Streams of events that end properly, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from starlette.types import Message, Receive

from ramet.runtime.server.errors import ApiError
from ramet.runtime.server.streaming import EventStream


class Held:
    """What a stream holds while it runs."""

    def __init__(self) -> None:
        self.is_freed = False

    async def events(self, *pieces: bytes | Exception) -> AsyncIterator[bytes]:
        try:
            for piece in pieces:
                await asyncio.sleep(0)
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self.is_freed = True


async def patient() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


def receives_disconnect_after(sent: list[Message], num_messages: int) -> Callable[[], object]:
    async def receive() -> Message:
        while len(sent) < num_messages:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    return receive


async def respond(stream: EventStream, sent: list[Message], receive: Receive = patient) -> None:
    async def send(message: Message) -> None:
        sent.append(message)
        await asyncio.sleep(0)

    await stream({"type": "http"}, receive, send)


def stream_of(held: Held, *pieces: bytes | Exception) -> EventStream:
    return EventStream(held.events(*pieces), lambda error: [b"error:" + error.message.encode()], "req")


def bodies(sent: list[Message]) -> list[bytes]:
    return [message["body"] for message in sent if message["type"] == "http.response.body"]


def test_a_stream_is_sent_whole() -> None:
    held, sent = Held(), list[Message]()
    asyncio.run(respond(stream_of(held, b"a", b"b"), sent))
    assert (sent[0]["status"], bodies(sent), sent[-1]["more_body"]) == (200, [b"a", b"b", b""], False)
    assert held.is_freed


def test_what_fails_before_the_first_event_is_an_answer_of_its_own() -> None:
    held, sent = Held(), list[Message]()
    with pytest.raises(ApiError, match="full"):
        asyncio.run(respond(stream_of(held, ApiError(429, "full")), sent))
    assert sent == []
    assert held.is_freed


def test_what_fails_later_ends_the_stream() -> None:
    held, sent = Held(), list[Message]()
    asyncio.run(respond(stream_of(held, b"a", ApiError(500, "broken"), b"b"), sent))
    assert bodies(sent) == [b"a", b"error:broken", b""]
    assert held.is_freed


@pytest.mark.parametrize("num_messages", [0, 1, 2, 3, 4])
def test_a_client_that_leaves_frees_what_the_stream_holds(num_messages: int) -> None:
    held, sent = Held(), list[Message]()

    async def run() -> None:
        await respond(stream_of(held, *[b"x"] * 1000), sent, receives_disconnect_after(sent, num_messages))  # type: ignore[arg-type]

    asyncio.run(run())
    assert len(sent) < 1000
    assert held.is_freed


def test_no_length_is_declared() -> None:
    assert b"content-length" not in dict(stream_of(Held(), b"a").raw_headers)
