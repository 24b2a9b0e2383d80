"""What a schedule policy is: an order for the waiting queue and a choice of victim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..sequence import Sequence

MatchLength = Callable[[Sequence], int]
"""Looks up how many tokens of a sequence the cache holds right now; costs tens of microseconds."""


class SchedulePolicy(Protocol):
    """Order of service. Implementations are stateless: all they know is on the sequences."""

    name: str

    def order(self, waiting: list[Sequence], match_length: MatchLength) -> list[Sequence]:
        """The waiting sequences, first to be served first. Must not drop or repeat any. Mutates at most
        `num_matched_tokens` of the sequences it looks up."""
        ...

    def victim(self, running: list[Sequence]) -> Sequence:
        """Which of the running sequences (at least one) loses its blocks when there are too few."""
        ...


def latest_arrival(running: list[Sequence]) -> Sequence:
    """The usual victim: the one that came last. The oldest always goes on, so somebody always finishes."""
    return max(running, key=lambda sequence: sequence.arrival_idx)
