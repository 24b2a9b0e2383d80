"""The known schedule policies. Adding one is a new file and a line here."""

from __future__ import annotations

from collections.abc import Callable

from .base import SchedulePolicy
from .fcfs import FirstComeFirstServed
from .lpm import LongestPrefixMatch
from .priority import Priority

SCHEDULE_POLICIES: dict[str, Callable[[], SchedulePolicy]] = {
    FirstComeFirstServed.name: FirstComeFirstServed,
    LongestPrefixMatch.name: LongestPrefixMatch,
    Priority.name: Priority,
}


def make_policy(name: str) -> SchedulePolicy:
    """The policy of that name, which must be a key of SCHEDULE_POLICIES (EngineConfig checks it)."""
    return SCHEDULE_POLICIES[name]()
