"""Retention: which parts of a prompt the cache should keep for longer, and which it may drop first.

An eviction policy knows only how a block was used. The caller may know more: that a system prompt will be asked for
again tomorrow, or that a scratchpad never will. It says so for ranges of tokens, with a number from 0 to 100. Whatever
the policy, blocks of lower retention are evicted first; the policy orders those of equal retention. (The idea is
KvCacheRetentionConfig of TensorRT-LLM, without its durations.)

A block has one retention: the highest of the ranges that overlap it, or DEFAULT_RETENTION where none does. Where
sequences share a block, the highest of what they ask for counts. It is not lowered again while the block is cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .errors import CacheUsageError

DEFAULT_RETENTION = 35
MAX_RETENTION = 100


@dataclass(frozen=True, slots=True)
class RetentionRange:
    """Tokens [start, end) of a sequence are to be kept with this priority.

    Attributes:
        start: the first token.
        end: one past the last token; None: all to the end, those that are still to be generated included.
        priority: from 0 (dropped first) to 100; what no range covers has DEFAULT_RETENTION.

    Raises:
        CacheUsageError: the range is empty or negative, or the priority out of bounds.
    """

    start: int
    end: int | None
    priority: int

    def __post_init__(self) -> None:
        for name, value in (("start", self.start), ("end", self.end), ("priority", self.priority)):
            if not isinstance(value, int) and (name != "end" or value is not None):
                raise CacheUsageError(f"{name}={value!r} is not allowed: it must be an integer")
        if self.start < 0:
            raise CacheUsageError(f"start={self.start} is not allowed: it must not be negative")
        if self.end is not None and self.end <= self.start:
            raise CacheUsageError(
                f"end={self.end} is not allowed: it must be more than start={self.start}, or None for all that follows"
            )
        if not 0 <= self.priority <= MAX_RETENTION:
            raise CacheUsageError(
                f"priority={self.priority} is not allowed: it must be between 0 and {MAX_RETENTION}; "
                f"what no range covers has {DEFAULT_RETENTION}"
            )


Retention = tuple[RetentionRange, ...]


def block_retention(ranges: Retention, start: int, end: int) -> int:
    """The retention of the block (or the run of like blocks) that holds tokens [start, end). O(ranges)."""
    if not ranges:
        return DEFAULT_RETENTION
    overlapping = [r.priority for r in ranges if r.start < end and (r.end is None or r.end > start)]
    return max(overlapping, default=DEFAULT_RETENTION)


def retention_runs(ranges: Retention, start: int, end: int, block_size: int) -> list[tuple[int, int]]:
    """Tokens [start, end), which are whole blocks, as runs of equal retention: (end of the run, retention), in order.

    O(ranges squared), however many blocks there are.
    """
    if not ranges:
        return [(end, DEFAULT_RETENTION)]
    cuts = {start, end}
    for r in ranges:
        cuts.add(r.start // block_size * block_size)
        if r.end is not None:
            cuts.add(-(-r.end // block_size) * block_size)
    runs: list[tuple[int, int]] = []
    for run_start, run_end in pairwise(sorted(cut for cut in cuts if start <= cut <= end)):
        retention = block_retention(ranges, run_start, run_end)
        if runs and runs[-1][1] == retention:
            runs.pop()
        runs.append((run_end, retention))
    return runs
