"""Schedule policies that are no part of the product: what others do, to compare with."""

from __future__ import annotations

from ..runtime.policies.base import SchedulePolicy, WaitingView
from ..runtime.policies.lpm import LongestPrefixMatch
from ..runtime.policies.registry import SCHEDULE_POLICIES, make_policy

MAX_LOOKUPS = 128


class UnagedLongestPrefixMatch(LongestPrefixMatch):
    """Longest match first and nothing else, as in the SGLang paper (arXiv 2312.07104, section 3). May starve."""

    name = "lpm without aging"

    def ranks(self, waiting: WaitingView) -> list[int]:
        """See `SchedulePolicy.ranks`."""
        return [-watch.num_tokens for watch in waiting.watches]


class LookupLimited(LongestPrefixMatch):
    """Order of arrival while more than MAX_LOOKUPS wait, longest match first from then on: what SGLang does to bound
    the cost of a pass."""

    name = f"lpm up to {MAX_LOOKUPS}, else fcfs"

    def ranks(self, waiting: WaitingView) -> list[int]:
        """See `SchedulePolicy.ranks`."""
        num_waiting = len(waiting.sequences)
        return list(range(num_waiting)) if num_waiting > MAX_LOOKUPS else super().ranks(waiting)


def all_policies() -> dict[str, SchedulePolicy]:
    """By name: every policy of the product, and longest match without aging."""
    policies: dict[str, SchedulePolicy] = {name: make_policy(name, seed=0) for name in SCHEDULE_POLICIES}
    unaged = UnagedLongestPrefixMatch()
    return policies | {unaged.name: unaged}
