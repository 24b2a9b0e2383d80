"""BatchOptions: how a batch is to run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, cast

from .errors import InvalidProgramError

MAX_CONCURRENCY = 4096
DEFAULT_CONCURRENCY = 64

OnItemError = Literal["return", "raise"]
NumThreads = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How to run a batch.

    Attributes:
        max_concurrency: how many items may run at a time.
        has_progress: whether to show progress.
        on_error: "raise" ends the batch at the first item that fails.
        max_failures: how many items may fail before the batch is ended; None for any number.
        retry_failed: whether items run again that the journal has as failed.

    Raises:
        InvalidProgramError: a value out of range, or values that contradict each other.
    """

    max_concurrency: int = DEFAULT_CONCURRENCY
    has_progress: bool = False
    on_error: OnItemError = "return"
    max_failures: int | None = None
    retry_failed: bool = True

    def __post_init__(self) -> None:
        value = self.max_concurrency
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CONCURRENCY:
            raise InvalidProgramError(
                f"max_concurrency={value!r} is not allowed: give an integer from 1 to {MAX_CONCURRENCY}"
            )
        if self.on_error not in ("return", "raise"):
            raise InvalidProgramError(f"on_error={self.on_error!r} is not allowed: use 'return' or 'raise'")
        most = self.max_failures
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
            raise InvalidProgramError(f"max_failures={most!r} is not allowed: give an integer of at least 0, or None")
        if most and self.on_error == "raise":
            raise InvalidProgramError(
                f"max_failures={most!r} is not allowed with on_error='raise', which ends the batch at the first failure"
            )
        if not isinstance(self.retry_failed, bool):
            raise InvalidProgramError(f"retry_failed={self.retry_failed!r} is not allowed: it must be True or False")

    @property
    def most_failures(self) -> int | None:
        """With more failed items than this the batch ends; None if it goes on whatever fails."""
        return 0 if self.on_error == "raise" else self.max_failures


def resolve_concurrency(max_concurrency: int | None, num_threads: NumThreads | None) -> int:
    """The one of two names for the same thing that was given.

    Raises:
        InvalidProgramError: both were.
    """
    if num_threads is None or num_threads == "auto":
        return DEFAULT_CONCURRENCY if max_concurrency is None else max_concurrency
    if max_concurrency is not None:
        raise InvalidProgramError(
            f"run_batch was given both max_concurrency={max_concurrency!r} and num_threads={num_threads!r}: they are "
            "the same argument, give max_concurrency"
        )
    return num_threads


def checked_path(journal: object) -> str | None:
    """
    Raises:
        InvalidProgramError: it is not the path of a file.
    """
    if journal is None:
        return None
    is_path = isinstance(journal, str | os.PathLike) and os.fspath(journal)
    if not is_path or "\0" in os.fsdecode(cast(str, journal)):
        raise InvalidProgramError(f"journal={journal!r} is not allowed: give the path of a file, such as 'run.jsonl'")
    return os.fsdecode(cast(str, journal))
