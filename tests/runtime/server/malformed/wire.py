"""One connection, watched: what came back, and whether anything happened meanwhile."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_SILENCE_S = 10.0
"""A server that neither answers nor computes for so long hangs."""
PATIENCE_S = 0.5
"""An answer that is still being computed after so long is not waited for."""
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [\w' -]*\r\n")


@dataclass(frozen=True, slots=True)
class Reply:
    """
    Attributes:
        data: all that came.
        was_left: the client went while the server still computed.
    """

    data: bytes
    was_left: bool

    @property
    def statuses(self) -> list[int]:
        """Of all answers on the connection, the interim one to `expect` left out."""
        return [status for status in map(int, _STATUS.findall(self.data)) if status != 100]

    @property
    def body(self) -> bytes:
        """Of the only answer, chunks put together."""
        head, _, body = self.data.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" not in head.lower():
            return body
        joined = b""
        while body:
            size, _, rest = body.partition(b"\r\n")
            num_bytes = int(size, 16)
            joined, body = joined + rest[:num_bytes], rest[num_bytes + 2 :]
        return joined


class HangError(AssertionError):
    """Nothing came, and nothing was computed."""


def exchange(address: tuple[str, int], pieces: Sequence[bytes], progress: Callable[[], int]) -> Reply:
    """Send, and read until the server closes.

    Args:
        progress: grows while the server computes.

    Raises:
        HangError: see MAX_SILENCE_S.
    """
    story = b"".join(pieces)[:300]
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        connection.settimeout(PATIENCE_S)
        try:
            for piece in pieces:
                connection.sendall(piece)
        except TimeoutError:
            raise HangError("the server does not read") from None
        except OSError:
            pass  # the server has closed already: what it said before is read all the same
        return _read(connection, progress, story)


def _read(connection: socket.socket, progress: Callable[[], int], story: bytes) -> Reply:
    data = b""
    seen, since = progress(), time.monotonic()
    while True:
        try:
            piece = connection.recv(65536)
        except TimeoutError:
            now = progress()
            if now > seen:
                return Reply(data, was_left=True)
            if time.monotonic() - since > MAX_SILENCE_S:
                raise HangError(f"nothing for {MAX_SILENCE_S:g} s after {data[-300:]!r}, for {story!r}") from None
            continue
        except ConnectionError:
            return Reply(data, was_left=False)
        if not piece:
            return Reply(data, was_left=False)
        data += piece
        seen, since = progress(), time.monotonic()


def error_of(reply: Reply) -> object:
    """What an answer of the application's says went wrong.

    Raises:
        ValueError: it is no JSON.
    """
    return json.loads(reply.body)["error"]
