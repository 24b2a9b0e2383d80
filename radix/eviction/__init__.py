"""Eviction: which unlocked leaf of the tree goes first when blocks run out."""

from __future__ import annotations

from ..errors import CacheUsageError
from .fifo import FIFOPolicy
from .keep_expected import KeepExpected
from .lfu import LFUPolicy
from .lru import LRUPolicy
from .policy import NEVER, UNKNOWN, EvictionPolicy, Usage, eviction_key
from .priority import PriorityPolicy
from .queue import EvictionQueue
from .slru import SLRUPolicy
from .steps import StepsToExecutionPolicy

__all__ = [
    "EVICTION_POLICIES",
    "NEVER",
    "UNKNOWN",
    "EvictionPolicy",
    "EvictionQueue",
    "Usage",
    "eviction_key",
    "make_eviction_policy",
]

EVICTION_POLICIES: dict[str, type[EvictionPolicy]] = {
    policy.name: policy
    for policy in (LRUPolicy, LFUPolicy, SLRUPolicy, FIFOPolicy, PriorityPolicy, StepsToExecutionPolicy)
}


def make_eviction_policy(name: str, *, keeps_expected: bool = False) -> EvictionPolicy:
    """The policy called `name`.

    Args:
        keeps_expected: let all that nobody expects to be used again go before what somebody does.

    Raises:
        CacheUsageError: there is no such policy; the message lists the known ones.
    """
    policy = EVICTION_POLICIES.get(name)
    if policy is None:
        known = ", ".join(EVICTION_POLICIES)
        raise CacheUsageError(f"eviction_policy={name!r} is not known: choose one of {known}")
    return KeepExpected(policy()) if keeps_expected else policy()
