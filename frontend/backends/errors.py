"""What backends fail with. A backend of your own may use these too."""

from __future__ import annotations

from ..errors import InvalidProgramError


class BackendClosedError(RuntimeError):
    """The backend was closed and takes no more calls."""


class UnsupportedByBackendError(InvalidProgramError):
    """A call asks for something that this backend cannot do. The message says what, and what to do instead."""


class BackendCallError(RuntimeError):
    """A server or API did not answer a call as it should. `__cause__` is what the client library raised, if it did.

    Attributes:
        status: the HTTP status it was refused with; None if there was no answer, or one that cannot be read.
        retry_after_s: how long the server asked to wait, if it did.
    """

    def __init__(self, message: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class CallCancelledError(RuntimeError):
    """A call was given up before it was answered; its connection was closed."""
