"""Any policy, but what somebody expects to be used again goes after all that nobody does."""

from __future__ import annotations

from .policy import NEVER, EvictionPolicy, Usage


class KeepExpected:
    """The order of another policy among what is expected, and among what is not, which goes first."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.name = policy.name
        self._policy = policy

    def key(self, usage: Usage) -> tuple[int, ...]:
        return (usage.steps_to_use < NEVER, *self._policy.key(usage))
