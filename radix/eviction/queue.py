"""EvictionQueue: finds the next victim without ever sorting or rebuilding a list of all leaves.

A binary heap with lazy keys. An entry is pushed once, when its piece becomes evictable. After that the piece may be
used (its key grows), locked, extended or dropped, and the heap is not told. Instead the smallest entry is looked at:

    its piece is not evictable any more   ->  forget the entry; the piece is pushed again when it becomes evictable
    its key has grown since               ->  sift it down under its present key, look again
    neither                               ->  it is the victim

This is right because keys never decrease: a stored key is at most the true one, so no victim hides behind a larger
entry. A touch costs nothing; push and pop cost O(log n), amortised over the accesses since. A push of what is queued
already, which is how an access ends, looks at the smallest entry once: so hardly any work piles up for one pop.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from .policy import EvictionPolicy, Usage, eviction_key


class Evictable(Protocol):
    """What the queue must know of a piece."""

    usage: Usage

    @property
    def is_evictable(self) -> bool: ...


PieceT = TypeVar("PieceT", bound=Evictable)


class EvictionQueue(Generic[PieceT]):
    """The evictable pieces, smallest eviction_key first; ties in order of arrival.

    Args:
        policy: orders pieces of equal retention.
        max_pieces: most pieces that can be alive at once. Entries of dropped pieces are swept when the heap is more
            than twice that, so memory stays bounded and the sweep is O(1) amortised.
    """

    def __init__(self, policy: EvictionPolicy, max_pieces: int) -> None:
        self.policy = policy
        self._heap: list[tuple[tuple[int, ...], int, PieceT]] = []
        self._num_pushed = 0
        self._sweep_len = 2 * max_pieces + 64

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, piece: PieceT) -> None:
        """Make `piece` a candidate, unless it is queued already. Mutates `piece.usage.is_queued`."""
        if piece.usage.is_queued:
            self._correct_smallest()
            return
        piece.usage.is_queued = True
        heapq.heappush(self._heap, self._entry(piece))
        if len(self._heap) > self._sweep_len:
            self._sweep()

    def pop(self) -> PieceT | None:
        """Take out the victim, or None when nothing is evictable. The caller evicts it, or pushes it again."""
        heap = self._heap
        while heap:
            if not self._correct_smallest():
                piece = heapq.heappop(heap)[2]
                piece.usage.is_queued = False
                return piece
        return None

    def entries(self) -> Iterator[tuple[tuple[int, ...], PieceT]]:
        """Stored keys and pieces, in no order; entries of dropped pieces may be among them. For checks."""
        return ((key, piece) for key, _, piece in self._heap)

    def _correct_smallest(self) -> bool:
        """Forget the smallest entry, or sift it down, if it is not right any more; returns whether that was so."""
        heap = self._heap
        key, _, piece = heap[0]
        if not piece.is_evictable:
            heapq.heappop(heap)
            piece.usage.is_queued = False
            return True
        if key != eviction_key(self.policy, piece.usage):
            heapq.heapreplace(heap, self._entry(piece))
            return True
        return False

    def _entry(self, piece: PieceT) -> tuple[tuple[int, ...], int, PieceT]:
        self._num_pushed += 1
        return (eviction_key(self.policy, piece.usage), self._num_pushed, piece)

    def _sweep(self) -> None:
        kept = []
        for entry in self._heap:
            if entry[2].is_evictable:
                kept.append(entry)
            else:
                entry[2].usage.is_queued = False
        heapq.heapify(kept)
        self._heap = kept
