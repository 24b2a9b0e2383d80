"""Program: the program that has had the least comes first (Autellix's PLAS and ATLAS, arXiv 2502.13965)."""

from __future__ import annotations

from ..sequence import Sequence
from .base import WaitingView, latest_arrival

AGING_TOKENS = 64
MAX_SERVED_TOKENS = 1 << 13
"""Programs that have had more than that are equals: they are long ones, and come one after the other."""


class LeastAttainedService:
    """Least attained service first: of the waiting requests, the one whose program has had the fewest tokens computed
    until now, what came from the cache left out. Of a program with branches the longest chain of calls counts that led
    to this one. A request without a program is a program of its own, which has had nothing yet. Aged: each time a later
    arrival is admitted first counts as AGING_TOKENS less.

    A short program then does not wait for all the calls of long ones, and nobody has to know ahead which is short.

    Bound: once a sequence was overtaken `MAX_SERVED_TOKENS / AGING_TOKENS` times, nobody who arrives from then on
    overtakes it; so at most that often, and once by each that waits at that moment.
    """

    name = "program"
    is_returning_first = True

    def ranks(self, waiting: WaitingView) -> list[int]:
        return [
            (0 if branch is None else min(branch.num_served_tokens, MAX_SERVED_TOKENS)) - AGING_TOKENS * overtaken
            for branch, overtaken in zip(
                [sequence.program_branch for sequence in waiting.sequences], waiting.num_overtaken(), strict=True
            )
        ]

    def victim(self, running: list[Sequence]) -> Sequence:
        return latest_arrival(running)
