"""Steps to execution (KVFlow, arXiv 2507.07400): what is used again last goes first."""

from __future__ import annotations

from .policy import Usage


class StepsToExecutionPolicy:
    """Evict what nobody will use again, then what may be used, then what is expected to be, the latest first; the
    least recently used among equals.

    Without expectations (radix/expectations.py) it is LRU.
    """

    name = "steps-to-execution"

    def key(self, usage: Usage) -> tuple[int, ...]:
        return (-usage.steps_to_use, usage.last_access)
