"""StrictConnection: h11's side of one connection, less generous with heads of requests that others may read otherwise.

Where a proxy and a server see the end of a request at different places, one client's bytes become another's request.
"""

from __future__ import annotations

import re

import h11

_VERSION = re.compile(rb"HTTP/(\d\.\d)\r?$", re.MULTILINE)
_FOLDED = re.compile(rb"\n[ \t]")
_LENGTH = re.compile(rb"\ncontent-length[ \t]*:", re.IGNORECASE)
_CODING = re.compile(rb"\ntransfer-encoding[ \t]*:", re.IGNORECASE)


class StrictConnection(h11.Connection):
    """A server's side.

    Attributes:
        fault: status and message for a request that h11 would take, or would call by another status; or None.
    """

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._max_head_bytes = max_head_bytes
        self.fault: tuple[int, str] | None = None

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """
        Raises:
            h11.RemoteProtocolError: it is no request, or `fault` says what is wrong with it.
        """
        if self.their_state is h11.IDLE:
            head = _head(self.trailing_data[0])
            self.fault = None if head is None else fault_of(head)
            if self.fault is not None:
                raise h11.RemoteProtocolError(self.fault[1], self.fault[0])
        try:
            return super().next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                self.fault = (431, f"the headers have more than {self._max_head_bytes} bytes, the limit of this server")
            raise


def _head(received: bytes) -> bytes | None:
    """The lines before the empty one, once that has come."""
    ends = [end for end in (received.find(b"\n\r\n"), received.find(b"\n\n")) if end >= 0]
    return received[: min(ends)] if ends else None


def fault_of(head: bytes) -> tuple[int, str] | None:
    """What is wrong with the lines of a request before its body, as a status and a message."""
    version = _VERSION.search(head.partition(b"\n")[0])
    if version is not None and version[1] not in (b"1.0", b"1.1"):
        return 505, f"HTTP/{version[1].decode()} is not spoken here: use HTTP/1.1"
    if _FOLDED.search(head):
        return 400, "a header goes on in a second line, which HTTP no longer allows"
    if _LENGTH.search(head) and _CODING.search(head):
        return 400, "the request has both Content-Length and Transfer-Encoding: send one of them"
    return None
