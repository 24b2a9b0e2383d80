"""Channel: messages between rank 0 and one other rank, over a pair of sockets that no other process has.

A message is its kind, its length and its bytes. Bytes are JSON or integers (see `messages.py`): nothing that is read
can be code.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from enum import IntEnum

_HEADER = struct.Struct("<BQ")
_BUFFER_BYTES = 1 << 22
_SEND_SECONDS = 60


class Kind(IntEnum):
    """What a message is; the comment says who sends it, and what its bytes are."""

    LOAD = 1  # rank 0: JSON, what to load
    HELLO = 2  # other: ready to connect
    CONNECT = 3  # rank 0: all are
    READY = 4  # other: the runner is loaded
    STEP = 5  # rank 0: a step, to be prepared
    RUN = 6  # rank 0: the id of the step to run
    FAILED = 7  # other: JSON, what was raised and where
    SETTLE = 8  # rank 0: say where you are
    SETTLED = 9  # other: the number of collectives entered, when all of them are done


class ChannelClosedError(ConnectionError):
    """The other side is gone, or takes no messages."""


class Channel:
    """One end. Any thread may send; one at a time may receive. Takes the socket over."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = threading.Lock()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """Raises ChannelClosedError; also when the other side has not read for a minute."""
        try:
            with self._lock:
                self._socket.sendall(_HEADER.pack(kind, len(payload)) + payload)
        except OSError as error:
            raise ChannelClosedError(f"a message cannot be sent: {error}") from error

    def receive(self) -> tuple[Kind, bytes]:
        """Wait for a message. Raises ChannelClosedError when there will be none."""
        kind, length = _HEADER.unpack(self._receive(_HEADER.size))
        return Kind(kind), self._receive(length)

    def close(self) -> None:
        """Wakes a thread that waits in `receive`. Idempotent."""
        with suppress(OSError):  # the other side has done so
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _receive(self, length: int) -> bytes:
        data = bytearray(length)
        view, start = memoryview(data), 0
        while start < length:
            try:
                count = self._socket.recv_into(view[start:])
            except OSError as error:
                raise ChannelClosedError(f"no message can be received: {error}") from error
            if count == 0:
                raise ChannelClosedError("the other side has closed")
            start += count
        return bytes(data)
