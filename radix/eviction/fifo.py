"""First in, first out."""

from __future__ import annotations

from .policy import Usage


class FIFOPolicy:
    """Evict what was computed longest ago, however often it was used since."""

    name = "fifo"

    def key(self, usage: Usage) -> tuple[int, ...]:
        return (usage.created,)
