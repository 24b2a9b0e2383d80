"""Least frequently used first."""

from __future__ import annotations

from .policy import Usage


class LFUPolicy:
    """Evict what the fewest sequences were started on; the older first among equals."""

    name = "lfu"

    def key(self, usage: Usage) -> tuple[int, ...]:
        return (usage.num_hits, usage.last_access)
