"""MemoryArena: memory for weights and KV blocks, mapped in large regions that the system can back with huge pages."""

from __future__ import annotations

import ctypes
import weakref

CHUNK_BYTES = 64 << 20
ALIGNMENT = 64


class MemoryArena:
    """Hands out pieces of large regions; all are given back together, when the arena is closed or collected.

    Memory is zeroed, and costs nothing before it is written."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._regions: list[tuple[int, int]] = []
        self._next = 0
        self._end = 0
        self._finalizer = weakref.finalize(self, _unmap, library, self._regions)

    def allocate(self, num_bytes: int) -> int:
        """Address of `num_bytes` of memory, aligned to a cache line.

        Raises:
            MemoryError: the system has no such memory.
        """
        num_bytes = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        if self._next + num_bytes > self._end:
            self._map(max(num_bytes, CHUNK_BYTES))
        address = self._next
        self._next += num_bytes
        return address

    def close(self) -> None:
        """Give the memory back. Nothing may use it afterwards. Idempotent."""
        self._finalizer()

    def _map(self, num_bytes: int) -> None:
        # Beyond 63 bits ctypes would cut the number off and get a small region.
        address = self._library.ramet_map_region(num_bytes) if num_bytes < 1 << 63 else None
        if not address:
            raise MemoryError(f"the system has no region of {num_bytes} bytes")
        self._regions.append((address, num_bytes))
        self._next, self._end = address, address + num_bytes


def _unmap(library: ctypes.CDLL, regions: list[tuple[int, int]]) -> None:
    for address, num_bytes in regions:
        library.ramet_unmap_region(address, num_bytes)
    regions.clear()
