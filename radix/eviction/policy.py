"""What an eviction policy is: an ordering key over how a piece of the cache has been used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Usage:
    """How one evictable piece (a leaf node or a partial leaf) has been used. Times are ticks of a logical clock.

    Attributes:
        created: tick at which the piece came into the tree.
        last_access: tick of the latest acquire, commit or release that went through it.
        num_hits: how many sequences were started on it.
        priority: highest priority of the sequences that went through it.
        is_queued: the eviction queue holds an entry for it.
    """

    created: int
    last_access: int
    num_hits: int = 0
    priority: int = 0
    is_queued: bool = False

    def touch(self, now: int, priority: int, is_hit: bool) -> None:
        """Record an access. No field ever goes down; EvictionQueue depends on that."""
        self.last_access = now
        self.priority = max(self.priority, priority)
        self.num_hits += is_hit

    def copy(self) -> Usage:
        """The same history for the other half of a split node, which is not queued yet."""
        return Usage(self.created, self.last_access, self.num_hits, self.priority)


class EvictionPolicy(Protocol):
    """Orders evictable pieces: the one with the smallest key is evicted first.

    The key of a piece must never decrease while the piece lives. Every policy here is such a function, because every
    field of Usage only grows.
    """

    name: str

    def key(self, usage: Usage) -> tuple[int, ...]: ...
