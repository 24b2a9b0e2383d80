"""Longest prefix match first (SGLang, arXiv 2312.07104, section 3), with aging.

Serving the longest match first visits the requests in depth-first order of their common tree, which is the order with
the highest hit rate when all requests are known (theorem 3.1 of the paper). Online it can starve a request that
shares nothing; so each time a later arrival is admitted first, the one passed over gains AGING_TOKENS.
"""

from __future__ import annotations

from ..sequence import Sequence
from .base import MatchLength, latest_arrival

AGING_TOKENS = 32
MAX_LOOKUPS = 64


class LongestPrefixMatch:
    """Most cached tokens first, aged.

    Cost: at most MAX_LOOKUPS tree walks a pass; beyond that the length seen earlier is used, and the queue's order
    of lookup follows the order of service, so those about to be served are always fresh.
    """

    name = "lpm"

    def order(self, waiting: list[Sequence], match_length: MatchLength) -> list[Sequence]:
        ranked = sorted(waiting, key=self._rank)
        for sequence in ranked[:MAX_LOOKUPS]:
            sequence.num_matched_tokens = match_length(sequence)
        return sorted(ranked, key=self._rank)

    def victim(self, running: list[Sequence]) -> Sequence:
        return latest_arrival(running)

    @staticmethod
    def _rank(sequence: Sequence) -> tuple[int, int]:
        return -(sequence.num_matched_tokens + AGING_TOKENS * sequence.num_overtaken), sequence.arrival_idx
