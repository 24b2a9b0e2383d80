"""Any policy, but what somebody expects to be used again goes after all else, and what nobody will use before."""

from __future__ import annotations

from .policy import UNKNOWN, EvictionPolicy, Usage


class KeepExpected:
    """The order of another policy among what will not be used, what may be, and what is expected to be."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.name = policy.name
        self._policy = policy

    def key(self, usage: Usage) -> tuple[int, ...]:
        steps = usage.steps_to_use
        return ((steps < UNKNOWN) - (steps > UNKNOWN), *self._policy.key(usage))
