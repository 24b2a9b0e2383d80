"""How long a read may wait, as its caller says it."""

from __future__ import annotations

import threading

from ..plain_numbers import plain_number
from .errors import InvalidProgramError


def checked_timeout(timeout: object) -> float | None:
    """Seconds to wait, or None for as long as it takes; so is what is longer than a thread can wait, some 290 years.

    Raises:
        InvalidProgramError: it is no number from 0 on, or None.
    """
    if timeout is None:
        return None
    seconds = plain_number(timeout)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidProgramError(
            f"timeout={timeout!r} is not allowed: give a number of seconds from 0 on, or None to wait as long as needed"
        )
    return None if seconds > threading.TIMEOUT_MAX else seconds
