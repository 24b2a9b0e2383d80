"""Lowest priority first."""

from __future__ import annotations

from .policy import Usage


class PriorityPolicy:
    """Evict what served only low-priority sequences; the least recently used first among equals."""

    name = "priority"

    def key(self, usage: Usage) -> tuple[int, ...]:
        return (usage.priority, usage.last_access)
