"""Longest output first: who may generate the most begins first, so that no long one is left alone at the end."""

from __future__ import annotations

from ..sequence import Sequence
from .base import WaitingView, latest_arrival

AGING_TOKENS = 32


class LongestOutputFirst:
    """Largest `max_tokens` first (SGLang's lof), aged: each time a later arrival is admitted first counts as
    AGING_TOKENS more.

    Bound: once a sequence was overtaken `largest max_tokens / AGING_TOKENS` times, nobody who arrives from then on
    overtakes it; so at most that often, and once by each that waits at that moment.
    """

    name = "lof"
    is_returning_first = True

    def ranks(self, waiting: WaitingView) -> list[int]:
        return [
            -sequence.max_tokens - AGING_TOKENS * overtaken
            for sequence, overtaken in zip(waiting.sequences, waiting.num_overtaken(), strict=True)
        ]

    def victim(self, running: list[Sequence]) -> Sequence:
        return latest_arrival(running)
