"""The known schedule policies. Adding one is a new file and a line here."""

from __future__ import annotations

from collections.abc import Callable

from .base import SchedulePolicy
from .dfs_weight import DepthFirstWeight
from .fcfs import FirstComeFirstServed
from .lof import LongestOutputFirst
from .lpm import LongestPrefixMatch
from .priority import Priority
from .program import LeastAttainedService
from .random_order import RandomOrder
from .routing_key import RoutingKey

SCHEDULE_POLICIES: dict[str, Callable[[int], SchedulePolicy]] = {
    LongestPrefixMatch.name: lambda seed: LongestPrefixMatch(),
    DepthFirstWeight.name: lambda seed: DepthFirstWeight(),
    FirstComeFirstServed.name: lambda seed: FirstComeFirstServed(),
    LongestOutputFirst.name: lambda seed: LongestOutputFirst(),
    RandomOrder.name: RandomOrder,
    Priority.name: lambda seed: Priority(),
    RoutingKey.name: lambda seed: RoutingKey(),
    LeastAttainedService.name: lambda seed: LeastAttainedService(),
}


def make_policy(name: str, seed: int) -> SchedulePolicy:
    """The policy of that name, which must be a key of SCHEDULE_POLICIES (EngineConfig checks it).

    Args:
        seed: base of all that a policy draws at random.
    """
    return SCHEDULE_POLICIES[name](seed)
