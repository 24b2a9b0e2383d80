"""Longest prefix match first (SGLang, arXiv 2312.07104, section 3), with aging.

Serving the longest match first visits the requests in depth-first order of their common tree, which is the order with
the highest hit rate when all requests are known (theorem 3.1 of the paper). Online it can starve a request that
shares nothing; so each time a later arrival is admitted first, the one passed over gains AGING_TOKENS.
"""

from __future__ import annotations

from ..sequence import Sequence
from .base import WaitingView, latest_arrival

AGING_TOKENS = 8
"""More lets a cold request pass sooner and costs hits: `ramet figures sglang-hit-rate sglang-starvation`."""


class LongestPrefixMatch:
    """Most cached tokens first, in whole blocks, aged. The lengths are exact however long the queue is.

    Bound: once a sequence was overtaken `longest match / AGING_TOKENS` times, nobody who arrives from then on overtakes
    it: whatever a newcomer could gain by its match, the older one has gained by age. So it is overtaken at most that
    often, and once by each that waits at that moment.

    A request that wants prompt logprobs is ranked by what is cached of it too, although it can use less of that where
    the logprobs are not kept beside the blocks: to know how much takes a look at each block, for each in every step.
    """

    name = "lpm"
    is_returning_first = True

    def ranks(self, waiting: WaitingView) -> list[int]:
        return [
            -watch.group.num_tokens - AGING_TOKENS * overtaken
            for watch, overtaken in zip(waiting.watches, waiting.num_overtaken(), strict=True)
        ]

    def victim(self, running: list[Sequence]) -> Sequence:
        return latest_arrival(running)
