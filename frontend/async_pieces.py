"""Pieces that come from a blocking iterator, for an event loop that must not block."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


async def async_pieces(make_iterator: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """What the iterator yields, and then what it raises. A thread of its own waits for the pieces; it starts with the
    iteration and ends with the iterator, or at its next piece after the iteration was left."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[bool, T | BaseException | None]] = asyncio.Queue()
    is_left = threading.Event()

    def send(is_piece: bool, content: T | BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(arrived.put_nowait, (is_piece, content))
        except RuntimeError:  # the loop was closed: nobody is listening
            is_left.set()

    def pump() -> None:
        error: BaseException | None = None
        try:
            for piece in make_iterator():
                send(True, piece)
                if is_left.is_set():
                    return
        except BaseException as raised:
            error = raised
        send(False, error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(pump,), name="ramet-text-iter", daemon=True).start()
    try:
        while True:
            is_piece, content = await arrived.get()
            if is_piece:
                yield content  # type: ignore[misc]  # a piece
            elif isinstance(content, BaseException):
                raise content
            else:
                return
    finally:
        is_left.set()
