"""Least recently used first."""

from __future__ import annotations

from .policy import Usage


class LRUPolicy:
    """Evict what was used longest ago. The right default: agents and chats come back to recent text."""

    name = "lru"

    def key(self, usage: Usage) -> tuple[int, ...]:
        return (usage.last_access,)
