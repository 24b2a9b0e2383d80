"""Priority: lower values first, ties by arrival; the victim is the least important, latest one (as in vLLM)."""

from __future__ import annotations

from ..sequence import Sequence
from .base import WaitingView


class Priority:
    """Order by `Request.priority`. May starve the unimportant, as asked: there is no bound.

    The preempted are ranked like the others, so they do not come before anybody more important.
    """

    name = "priority"
    is_returning_first = False

    def ranks(self, waiting: WaitingView) -> list[int]:
        return [sequence.request.priority for sequence in waiting.sequences]

    def victim(self, running: list[Sequence]) -> Sequence:
        return max(running, key=lambda sequence: (sequence.request.priority, sequence.arrival_idx))
