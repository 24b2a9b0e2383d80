"""Clients that came before there was a server to serve them, when there will be none."""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import ExitStack, suppress

from .errors import error_body, shutting_down
from .json_text import to_json

_PATIENCE_SECONDS = 1.0
"""For all of them together to send what they ask, and to read why they get nothing."""
_CHUNK_BYTES = 65536


def turn_away(listening: socket.socket) -> None:
    """Answer with 503 those that wait at the socket, and close it: who comes now is refused. Takes a second at most.
    Raises nothing."""
    with suppress(OSError), ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for client in _waiting(listening):
            stack.enter_context(client)
            selector.register(client, selectors.EVENT_READ)
        listening.close()
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        answered: set[socket.socket] = set()
        while selector.get_map() and (seconds := give_up_at - time.monotonic()) > 0:
            for found, _ in selector.select(seconds):
                heard = found.fileobj
                assert isinstance(heard, socket.socket)
                if not _listen(heard, is_answered=heard in answered):
                    selector.unregister(heard)
                answered.add(heard)


def _waiting(listening: socket.socket) -> list[socket.socket]:
    clients: list[socket.socket] = []
    with suppress(OSError):  # there are no more, or the socket is closed already
        listening.setblocking(False)
        while True:
            clients.append(listening.accept()[0])
    return clients


def _listen(client: socket.socket, *, is_answered: bool) -> bool:
    """Read what there is, and answer if that is yet to be done. False once the client has no more to say: one that is
    left before would be reset, and never read why."""
    with suppress(OSError):
        client.setblocking(False)
        asked = client.recv(_CHUNK_BYTES)
        if asked and not is_answered:
            client.sendall(_refusal(asked))
            client.shutdown(socket.SHUT_WR)
        return bool(asked)
    return False


def _refusal(asked: bytes) -> bytes:
    words = asked.partition(b"\r\n")[0].split(b" ")
    path = words[1].decode("latin-1") if len(words) == 3 else ""
    error = shutting_down()
    body = to_json(error_body(path, error))
    head = (
        f"HTTP/1.1 {error.status} Service Unavailable\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nretry-after: {error.retry_after_s:g}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
