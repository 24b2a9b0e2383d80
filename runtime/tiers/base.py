"""KVTier: what keeps blocks of keys and values beyond the pool. One contract for all of them (docs/adr/0035).

A block is known by all tokens up to its end, in its namespace: it is asked for by these, and no hash stands for them.
Blocks are counted from the beginning of their prefix: block i holds the keys and values of tokens
[i * block_size, (i + 1) * block_size). Its data is one row of bytes, in whatever layout the runner has.
"""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor


@dataclass(slots=True)
class TierStats:
    """Counts since the tier was opened; two gauges.

    Attributes:
        num_hits: how often blocks were loaded.
        num_loaded_blocks, num_loaded_bytes: brought back to the pool.
        num_stored_blocks, num_stored_bytes: taken in for good.
        num_refused_blocks: not taken in, because the tier was behind with those before, or has just failed.
        num_failed_blocks: taken in, and lost: they could not be written.
        num_evicted_blocks: given up to make room for others.
        num_damaged_blocks: found to be not what was stored, and dropped.
        num_held_blocks, max_held_blocks: what it holds now, and what it has room for.
    """

    num_hits: int = 0
    num_loaded_blocks: int = 0
    num_loaded_bytes: int = 0
    num_stored_blocks: int = 0
    num_stored_bytes: int = 0
    num_refused_blocks: int = 0
    num_failed_blocks: int = 0
    num_evicted_blocks: int = 0
    num_damaged_blocks: int = 0
    num_held_blocks: int = 0
    max_held_blocks: int = 0


class KVTier(Protocol):
    """Keeps blocks. Belongs to the engine's thread, which it never keeps waiting for a device or a disk to be written.

    Attributes:
        name: its key in TIERS.
        takes: whether it is offered what a finished sequence leaves in the pool, or what the pool gives up.
    """

    @property
    def name(self) -> str: ...

    @property
    def takes(self) -> Literal["finished", "evicted"]: ...

    @property
    def stats(self) -> TierStats:
        """A snapshot."""
        ...

    def num_held(self, namespace: Hashable, token_ids: list[int], start: int, end: int) -> int:
        """How many blocks from block `start` on, up to `end`, can be loaded. Mutates nothing. O(end)."""
        ...

    def load(self, namespace: Hashable, token_ids: list[int], start: int, end: int) -> Tensor:
        """The data of those blocks, as uint8 [n, bytes of a block], a copy. Counts as their use.

        n is less than asked for, maybe 0, where a block is not held (any more), or is found damaged: that one and all
        that go on from it are then dropped.

        Raises:
            MemoryError, RuntimeError: there is no memory for them.
        """
        ...

    def prefetch(self, namespace: Hashable, token_ids: list[int], end: int) -> None:
        """Blocks up to `end` may be loaded soon. A hint: does not wait."""
        ...

    def wanted(self, namespace: Hashable, token_ids: list[int], start: int, end: int) -> range:
        """Which of the blocks [start, end) it would take in now. Counts as a use of those it has. O(end)."""
        ...

    def offer(self, namespace: Hashable, token_ids: list[int], start: int, blocks: Tensor) -> None:
        """Take in the blocks from `start` on, which it has just said it wants.

        Args:
            blocks: uint8 [n, bytes of a block] on the device of the pool; nobody else changes it any more. On a device
                it may still be computed: it is read in stream order.

        Raises:
            MemoryError, RuntimeError: there is no memory for them. None was taken in.
        """
        ...

    def clear(self) -> Future[None]:
        """Forget everything: nothing can be loaded any more when this returns.

        Returns:
            Done when nothing is left on any medium either. It may be waited for, though not on the engine's thread; it
            cannot be cancelled. PrefixesKeptError: something is left there.
        """
        ...

    def close(self) -> None:
        """Finish what was taken in, as far as that takes no longer than moments, and let go. Idempotent."""
        ...
