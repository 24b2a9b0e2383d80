"""Eviction: which unlocked leaf of the tree goes first when blocks run out."""

from __future__ import annotations

from ..errors import CacheUsageError
from .fifo import FIFOPolicy
from .lfu import LFUPolicy
from .lru import LRUPolicy
from .policy import EvictionPolicy, Usage, eviction_key
from .priority import PriorityPolicy
from .queue import EvictionQueue
from .slru import SLRUPolicy

__all__ = ["EVICTION_POLICIES", "EvictionPolicy", "EvictionQueue", "Usage", "eviction_key", "make_eviction_policy"]

EVICTION_POLICIES: dict[str, type[EvictionPolicy]] = {
    policy.name: policy for policy in (LRUPolicy, LFUPolicy, SLRUPolicy, FIFOPolicy, PriorityPolicy)
}


def make_eviction_policy(name: str) -> EvictionPolicy:
    """The policy called `name`.

    Raises:
        CacheUsageError: there is no such policy; the message lists the known ones.
    """
    policy = EVICTION_POLICIES.get(name)
    if policy is None:
        known = ", ".join(EVICTION_POLICIES)
        raise CacheUsageError(f"eviction_policy={name!r} is not known: choose one of {known}")
    return policy()
