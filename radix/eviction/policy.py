"""What an eviction policy is: an ordering key over how a piece of the cache has been used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..retention import DEFAULT_RETENTION

UNKNOWN = 1 << 30
"""Steps to the next use of what may be used at any time or not at all."""

NEVER = UNKNOWN + 1
"""Steps to the next use of what nobody will use, as far as those know who have used it."""


@dataclass(slots=True)
class Usage:
    """How one evictable piece (a leaf node or a partial leaf) has been used. Times are ticks of a logical clock.

    Attributes:
        created: tick at which the piece came into the tree.
        last_access: tick of the latest acquire, commit or release that went through it.
        num_hits: how many sequences were started on it.
        priority: highest priority of the sequences that went through it.
        retention: highest retention that those sequences asked for. All policies evict lower ones first.
        steps_to_use: in how many steps somebody expects it to be used again; UNKNOWN or NEVER where nobody does.
        queue_number: of its entry in the eviction queue; 0 where it has none.
    """

    created: int
    last_access: int
    num_hits: int = 0
    priority: int = 0
    retention: int = DEFAULT_RETENTION
    steps_to_use: int = UNKNOWN
    queue_number: int = 0

    @property
    def is_queued(self) -> bool:
        return self.queue_number > 0

    def touch(self, now: int, priority: int, is_hit: bool) -> None:
        """Record an access. No key ever goes down by it; EvictionQueue depends on that."""
        self.last_access = now
        self.priority = max(self.priority, priority)
        self.num_hits += is_hit
        if is_hit and self.steps_to_use == NEVER:
            self.steps_to_use = UNKNOWN

    def retain(self, retention: int) -> None:
        """Keep the piece with this retention from now on, unless it has a higher one."""
        self.retention = max(self.retention, retention)

    def copy(self) -> Usage:
        """The same history for the other half of a split node, which is not queued yet, and at whose end nothing is
        expected."""
        return Usage(self.created, self.last_access, self.num_hits, self.priority, self.retention)


class EvictionPolicy(Protocol):
    """Orders evictable pieces of equal retention: the one with the smallest key is evicted first.

    The key of a piece must never decrease while the piece lives, unless steps_to_use grows: the tree tells the queue of
    that. Every policy here is such a function, because every other field of Usage only grows.
    """

    name: str

    def key(self, usage: Usage) -> tuple[int, ...]: ...


def eviction_key(policy: EvictionPolicy, usage: Usage) -> tuple[int, ...]:
    """What pieces are evicted by, smallest first: retention, then the policy's key. It decreases as little as that."""
    return (usage.retention, *policy.key(usage))
