"""Program: the program that has had the least comes first (Autellix's PLAS and ATLAS, arXiv 2502.13965), with aging."""

from __future__ import annotations

from ..sequence import Sequence
from .base import WaitingView, latest_arrival

FIRST_LEVEL_TOKENS = 256
MAX_LEVEL = 6
LEVEL_TOKENS = 1024
"""A level is worth so many cached tokens; more of those make no difference."""
AGING_TOKENS = 8


class LeastAttainedService:
    """Least attained service first: the request whose program has had the fewest tokens computed until now. Tokens that
    came from the cache were not computed; of a program with branches the longest chain of calls counts that led to this
    one. A request without a program is a program of its own, which has had nothing yet.

    A short program then does not wait for all the calls of long ones, and nobody has to know ahead which is short. But
    an order by single tokens gives programs of equal length equal shares of the engine, so that all of them end late,
    and forgets the cache. So there are levels, each of twice as many tokens as the one before; and in a level the
    longest prefix match comes first.

    Bound: each time a later arrival is admitted first counts as AGING_TOKENS more that are cached. So once a sequence
    was overtaken `(MAX_LEVEL + 1) * LEVEL_TOKENS / AGING_TOKENS` times, nobody who arrives from then on overtakes it:
    at most that often, and once by each that waits at that moment.
    """

    name = "program"
    is_returning_first = True

    def ranks(self, waiting: WaitingView) -> list[int]:
        return [
            (0 if branch is None else min((branch.num_served_tokens // FIRST_LEVEL_TOKENS).bit_length(), MAX_LEVEL))
            * LEVEL_TOKENS
            - min(watch.group.num_tokens, LEVEL_TOKENS - 1)
            - AGING_TOKENS * overtaken
            for branch, watch, overtaken in zip(
                [sequence.program_branch for sequence in waiting.sequences],
                waiting.watches,
                waiting.num_overtaken(),
                strict=True,
            )
        ]

    def victim(self, running: list[Sequence]) -> Sequence:
        return latest_arrival(running)
