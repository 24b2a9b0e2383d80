"""Priority: lower values first, ties by arrival; the victim is the least important, latest one (as in vLLM)."""

from __future__ import annotations

from ..sequence import Sequence
from .base import MatchLength


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.request.priority, sequence.arrival_idx


class Priority:
    """Order by `Request.priority`; may starve the unimportant, as asked."""

    name = "priority"

    def order(self, waiting: list[Sequence], match_length: MatchLength) -> list[Sequence]:
        return sorted(waiting, key=_rank)

    def victim(self, running: list[Sequence]) -> Sequence:
        return max(running, key=_rank)
