"""StrictConnection: h11's side of one connection, less generous with the heads of requests.

Where a proxy and a server see the end of a request at different places, one client's bytes become another's request. So
whatever others may read otherwise is refused, and with it the connection closed.
"""

from __future__ import annotations

import re

import h11

_VERSION = re.compile(rb"HTTP/(\d\.\d)\r?$", re.MULTILINE)
_FOLDED = re.compile(rb"\n[ \t]")
_LENGTH = re.compile(rb"\ncontent-length[ \t]*:", re.IGNORECASE)
_CODING = re.compile(rb"\ntransfer-encoding[ \t]*:", re.IGNORECASE)

Fault = tuple[int, str]
"""Status and message."""


class StrictConnection(h11.Connection):
    """A server's side.

    Args:
        max_head_bytes: of the lines of a request before its body.

    Attributes:
        fault: what is wrong with a request that h11 would take, or would call by another status; or None.
    """

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._max_head_bytes = max_head_bytes
        self.fault: Fault | None = None

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """
        Raises:
            h11.RemoteProtocolError: it is no request, or `fault` says what is wrong with it.
        """
        if self.their_state is h11.IDLE:
            self.fault = self._fault_of(self.trailing_data[0])
            if self.fault is not None:
                raise h11.RemoteProtocolError(self.fault[1], self.fault[0])
        return super().next_event()

    def _fault_of(self, received: bytes) -> Fault | None:
        ends = [end for end in (received.find(b"\n\r\n"), received.find(b"\n\n")) if end >= 0]
        head = received[: min(ends)] if ends else None
        if len(received if head is None else head) > self._max_head_bytes:
            return 431, f"the head of the request has more than {self._max_head_bytes} bytes, the limit of this server"
        return None if head is None else fault_of(head)


def fault_of(head: bytes) -> Fault | None:
    """What is wrong with the lines of a request before the empty one."""
    version = _VERSION.search(head.partition(b"\n")[0])
    if version is not None and version[1] not in (b"1.0", b"1.1"):
        return 505, f"HTTP/{version[1].decode()} is not spoken here: use HTTP/1.1"
    if head.startswith(b"CONNECT "):
        return 405, "CONNECT is for proxies, and this is none"
    if _FOLDED.search(head):
        return 400, "a header goes on in a second line, which HTTP no longer allows"
    if _LENGTH.search(head) and _CODING.search(head):
        return 400, "the request has both Content-Length and Transfer-Encoding: send one of them"
    return None
