"""The known schedule policies. Adding one is a new file and a line here."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import InvalidConfigError
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
    """The policy of that name.

    Raises:
        InvalidConfigError: there is none; the message lists those there are.
    """
    if name not in SCHEDULE_POLICIES:
        raise InvalidConfigError(f"schedule_policy={name!r} is unknown; choose one of {sorted(SCHEDULE_POLICIES)}")
    return SCHEDULE_POLICIES[name]()
