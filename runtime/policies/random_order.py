"""Random order: what the cache-aware policies are measured against."""

from __future__ import annotations

import random

from ..sequence import Sequence
from .base import WaitingView, latest_arrival

WINDOW = 1024
NUM_DRAWS = 1 << 14
"""Then they come again, long after everybody of the first time has been served."""


class RandomOrder:
    """Each sequence moves back by a number of arrivals drawn at random from [0, WINDOW).

    A queue that came in at once is shuffled, up to WINDOW of it at a time. One draw for a sequence's whole life, a
    function of the seed and of its arrival: the same requests are served in the same order again. The draws are made
    beforehand, so that a rank costs one look-up.

    Bound: nobody is overtaken by one who arrives WINDOW or more later, so by less than WINDOW in all.
    """

    name = "random"
    is_returning_first = True

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed).randrange
        self._draws = [draw(WINDOW) for _ in range(NUM_DRAWS)]

    def ranks(self, waiting: WaitingView) -> list[int]:
        draws = self._draws
        return [
            arrival_idx + draws[arrival_idx % NUM_DRAWS]
            for arrival_idx in [sequence.arrival_idx for sequence in waiting.sequences]
        ]

    def victim(self, running: list[Sequence]) -> Sequence:
        return latest_arrival(running)
