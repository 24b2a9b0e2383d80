"""BodyBudget: how much of the bodies of requests a server holds, of one and of all together."""

from __future__ import annotations

from starlette.types import Message, Receive

from .errors import ApiError
from .memory import Sweeper

_ALWAYS_TAKEN_BYTES = 64 << 10
"""Of each request, however much others have sent: it stands in the buffer of its connection already."""
MAX_BRACKETS = 250_000
"""A list or an object takes two bytes of a body, and hundreds of the server's memory. Brackets in texts count too: the
body would have to be read to tell them apart."""


class BodyBudget:
    """Counts the bytes of the bodies in the server, on one thread. What is made of them is many times as large.

    Args:
        max_bytes: of one body.
        max_total_bytes: of all bodies whose requests have not been answered.
    """

    def __init__(self, max_bytes: int, max_total_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._num_bytes = 0
        self._sweeper = Sweeper()

    def open(self) -> CountedBody:
        """For the body of one request."""
        return CountedBody(self)

    def check_len(self, num_bytes: int) -> None:
        """
        Raises:
            ApiError: 413, a body of so many bytes is too large.
        """
        if num_bytes > self._max_bytes:
            raise ApiError(413, f"the body has more than {self._max_bytes} bytes, the limit of this server")

    def add(self, num_before: int, num_bytes: int) -> None:
        """A part of a body has come, of which `num_before` bytes came before.

        Raises:
            ApiError: 413, it is too large; 429, all together are. It counts all the same.
        """
        self._num_bytes += num_bytes
        self.check_len(num_before + num_bytes)
        if num_before + num_bytes > _ALWAYS_TAKEN_BYTES and self._num_bytes > self._max_total_bytes:
            message = f"the server is full: requests hold bodies of {self._max_total_bytes} bytes; try again later"
            raise ApiError(429, message, code="server_full", retry_after_s=2.0)

    def remove(self, num_bytes: int) -> None:
        """A request is answered."""
        self._num_bytes -= num_bytes
        self._sweeper.note_gone(num_bytes)


class CountedBody:
    """What has come of the body of one request."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._num_bytes = 0
        self._num_brackets = 0

    def counted(self, receive: Receive) -> Receive:
        """Counts what is received. It raises an ApiError, 413 or 429, as soon as that is too much."""

        async def receive_counted() -> Message:
            message = await receive()
            part = message.get("body", b"")
            self._num_brackets += part.count(b"[") + part.count(b"{")
            self.add(len(part))
            if self._num_brackets > MAX_BRACKETS:
                raise ApiError(
                    413,
                    f"the body has more than {MAX_BRACKETS} brackets: so many lists and objects are not taken at once",
                )
            return message

        return receive_counted

    def add(self, num_bytes: int) -> None:
        """So much has come.

        Raises:
            ApiError: as `BodyBudget.add`.
        """
        num_before = self._num_bytes
        self._num_bytes += num_bytes
        self._budget.add(num_before, num_bytes)

    def free(self) -> None:
        """The request is answered."""
        self._budget.remove(self._num_bytes)
        self._num_bytes = 0
