"""Routing key: requests of the kind that most running ones are of come first (SGLang's routing-key)."""

from __future__ import annotations

from collections import Counter

from ..sequence import Sequence
from .base import WaitingView, latest_arrival


class RoutingKey:
    """Most running sequences with the same `Request.routing_key` first, aged: each time a later arrival is admitted
    first counts as one running sequence more. No key is a key that nobody runs with.

    Bound: once a sequence was overtaken max_num_seqs times, nobody who arrives from then on overtakes it; so at most
    that often, and once by each that waits at that moment.
    """

    name = "routing-key"
    is_returning_first = True

    def ranks(self, waiting: WaitingView) -> list[int]:
        num_running = dict(Counter([sequence.request.routing_key for sequence in waiting.running])) | {None: 0}
        return [
            -num_running.get(sequence.request.routing_key, 0) - overtaken
            for sequence, overtaken in zip(waiting.sequences, waiting.num_overtaken(), strict=True)
        ]

    def victim(self, running: list[Sequence]) -> Sequence:
        return latest_arrival(running)
