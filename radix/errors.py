"""Errors of the cache that a caller can cause."""

from __future__ import annotations


class CacheUsageError(ValueError):
    """A call to the cache that cannot be right: the message names the value, the limit and what to do."""


class InvariantViolation(AssertionError):  # noqa: N818 - it names what was found, not what failed
    """The cache contradicts itself. `violations` holds one sentence for each contradiction."""

    def __init__(self, violations: list[str]) -> None:
        super().__init__("; ".join(violations))
        self.violations = violations
