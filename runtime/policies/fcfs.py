"""First come, first served."""

from __future__ import annotations

from ..sequence import Sequence
from .base import MatchLength, latest_arrival


class FirstComeFirstServed:
    """Order of arrival; blind to the cache."""

    name = "fcfs"

    def order(self, waiting: list[Sequence], match_length: MatchLength) -> list[Sequence]:
        return sorted(waiting, key=lambda sequence: sequence.arrival_idx)

    def victim(self, running: list[Sequence]) -> Sequence:
        return latest_arrival(running)
