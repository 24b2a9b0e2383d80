"""Segmented least recently used (Karedla, Love and Wherry, 1994)."""

from __future__ import annotations

from .policy import Usage

PROTECTED_HITS = 2


class SLRUPolicy:
    """Two segments, each in LRU order: what was reused at least PROTECTED_HITS times outlives all that was not.

    One pass over many prompts that never come back then cannot push out a prefix that does. Unlike the original, a
    protected piece is not demoted: the protected segment has no size of its own here.
    """

    name = "slru"

    def key(self, usage: Usage) -> tuple[int, ...]:
        return (int(usage.num_hits >= PROTECTED_HITS), usage.last_access)
