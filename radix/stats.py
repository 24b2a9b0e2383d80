"""CacheStats: what the cache has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheStats:
    """Counts since the cache was made.

    Attributes:
        num_queried_tokens: tokens of the sequences acquired.
        num_hit_tokens: how many of them were cached.
        num_copied_blocks: partial blocks copied, by acquire and fork.
        num_inserted_blocks: full blocks given to the tree.
        num_deduplicated_blocks: blocks computed although the tree had got them meanwhile; freed.
        num_evicted_blocks: blocks taken from the tree to make room.
    """

    num_queried_tokens: int = 0
    num_hit_tokens: int = 0
    num_copied_blocks: int = 0
    num_inserted_blocks: int = 0
    num_deduplicated_blocks: int = 0
    num_evicted_blocks: int = 0
