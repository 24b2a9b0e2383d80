"""Admission: how many samples the server has promised to answer, and what those are told who come too many."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from ...counted import counted
from .errors import ApiError, shutting_down

_MAX_RETRY_AFTER_S = 60.0


@dataclass(eq=False, slots=True)
class Place:
    """Room for some samples; to be freed once."""

    admission: Admission
    num_sequences: int
    is_taken: bool = True

    def free(self) -> None:
        """Idempotent."""
        if self.is_taken:
            self.is_taken = False
            self.admission.give_back(self.num_sequences)


class Admission:
    """Counts samples in the server, on one thread.

    Attributes:
        num_live: samples that run, wait, or are being prepared.
        is_draining: nobody is let in any more.
    """

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.max_live = max_running + max_waiting
        self.num_live = 0
        self.is_draining = False
        self.num_rejected = 0
        self._ended_at: deque[tuple[float, int]] = deque(maxlen=64)

    def take(self, num_sequences: int) -> Place:
        """
        Raises:
            ApiError: 503, the server is shutting down; 429, it is full; 400, it is never that empty.
        """
        if self.is_draining:
            self.num_rejected += 1
            raise shutting_down()
        if num_sequences > self.max_live:
            asked = counted(num_sequences, "sample")
            raise ApiError(
                400,
                f"the request has {asked}, and this server takes {self.max_live}: ask in parts, or start it with a "
                "larger --max-waiting-sequences",
            )
        if self.num_live + num_sequences > self.max_live:
            self.num_rejected += 1
            live = counted(self.num_live, "sample")
            raise ApiError(
                429,
                f"the server is full: {live} running or waiting, of {self.max_live:,} at most; try again later",
                code="server_full",
                retry_after_s=self._seconds_until_free(num_sequences),
            )
        self.num_live += num_sequences
        return Place(self, num_sequences)

    def give_back(self, num_sequences: int) -> None:
        self.num_live -= num_sequences
        self._ended_at.append((time.monotonic(), num_sequences))

    def _seconds_until_free(self, num_sequences: int) -> float:
        """As quickly as the last ones have ended."""
        if not self._ended_at:
            return 1.0
        span = time.monotonic() - self._ended_at[0][0]
        rate = sum(count for _, count in self._ended_at) / max(span, 1e-3)
        return min(max(num_sequences / rate, 1.0), _MAX_RETRY_AFTER_S)
