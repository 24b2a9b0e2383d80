"""HostTier: what a device's pool gives up, in the memory of the host.

On CUDA the memory is pinned and every copy is enqueued on the current stream, behind the steps that were launched and
before those that come: a block is read before its place is written anew, and written before it is read. So the host
never waits, and never looks at the data itself.
"""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from .base import TierStats
from .slot_index import NO_SLOT, SlotIndex

_PINNED_BYTES = 1 << 30
"""Pinned at once: torch rounds it up to a power of two, and 20 GiB would be 32."""


class HostTier:
    """Implements `base.KVTier` over `num_slots` blocks of host memory.

    Args:
        device: that of the pool.

    Raises:
        MemoryError, RuntimeError: the memory cannot be had.
    """

    name = "host"
    takes: Literal["finished", "evicted"] = "evicted"

    def __init__(self, num_slots: int, block_size: int, bytes_per_block: int, device: torch.device) -> None:
        self._device = device
        self._bytes_per_block = bytes_per_block
        is_pinned = device.type == "cuda"
        self._slots_a_piece = max(1, _PINNED_BYTES // bytes_per_block) if is_pinned else num_slots
        lengths = [min(self._slots_a_piece, num_slots - first) for first in range(0, num_slots, self._slots_a_piece)]
        self._pieces = [
            torch.empty((length, bytes_per_block), dtype=torch.uint8, pin_memory=is_pinned) for length in lengths
        ]
        self._index = SlotIndex(num_slots, block_size)
        self._stats = TierStats(max_held_blocks=num_slots)

    @property
    def stats(self) -> TierStats:
        return replace(self._stats, num_held_blocks=self._index.num_used_slots)

    def num_held(self, namespace: Hashable, token_ids: list[int], start: int, end: int) -> int:
        return len(self._held_slots(namespace, token_ids, start, end))

    def load(self, namespace: Hashable, token_ids: list[int], start: int, end: int) -> Tensor:
        slots = self._held_slots(namespace, token_ids, start, end)
        blocks = torch.empty((len(slots), self._bytes_per_block), dtype=torch.uint8, device=self._device)
        for row, slot in enumerate(slots):
            blocks[row].copy_(self._memory_of(slot), non_blocking=True)
        self._index.touch(self._index.path(namespace, self._index.keys(token_ids, end)))
        self._stats.num_hits += bool(slots)
        self._stats.num_loaded_blocks += len(slots)
        self._stats.num_loaded_bytes += blocks.numel()
        return blocks

    def prefetch(self, namespace: Hashable, token_ids: list[int], end: int) -> None:
        """It is in memory."""

    def wanted(self, namespace: Hashable, token_ids: list[int], start: int, end: int) -> range:
        path = self._index.path(namespace, self._index.keys(token_ids, end))
        self._index.touch(path)
        while start < min(end, len(path)) and path[start].slot != NO_SLOT:
            start += 1
        return range(start, end)

    def offer(self, namespace: Hashable, token_ids: list[int], start: int, blocks: Tensor) -> None:
        keys = self._index.keys(token_ids, start + len(blocks))
        added, num_evicted = self._index.add(namespace, keys, start)
        row_of = {entry: row for row, entry in enumerate(self._index.path(namespace, keys)[start:])}
        for entry in added:
            self._memory_of(entry.slot).copy_(blocks[row_of[entry]], non_blocking=True)
        self._stats.num_evicted_blocks += num_evicted
        self._stats.num_stored_blocks += len(added)
        self._stats.num_stored_bytes += len(added) * self._bytes_per_block

    def clear(self) -> Future[None]:
        self._index.clear()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def close(self) -> None:
        self._index.clear()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # copies may be under way

    def _held_slots(self, namespace: Hashable, token_ids: list[int], start: int, end: int) -> list[int]:
        slots: list[int] = []
        for entry in self._index.path(namespace, self._index.keys(token_ids, end))[start:]:
            if entry.slot == NO_SLOT:
                break
            slots.append(entry.slot)
        return slots

    def _memory_of(self, slot: int) -> Tensor:
        """uint8 [bytes of a block]."""
        piece, row = divmod(slot, self._slots_a_piece)
        return self._pieces[piece][row]
