"""EvictionQueue: finds the next victim without ever sorting or rebuilding a list of all leaves.

A binary heap with lazy keys. An entry is pushed once, when its piece becomes evictable. After that the piece may be
used (its key grows), locked, extended or dropped, and the heap is not told. Instead the smallest entry is looked at:

    its piece is not evictable any more   ->  forget the entry; the piece is pushed again when it becomes evictable
    its key has grown since               ->  sift it down under its present key, look again
    neither                               ->  it is the victim

This is right because a stored key is at most the true one, so no victim hides behind a larger entry. Keys only grow,
but for one case: a piece that was expected to be used soon is not any more. The queue is told of that and pushes a new
entry; the old one is known by its number, and forgotten like that of a piece that went. A touch costs nothing; push
and pop cost O(log n), amortised over the accesses since. A push of what is queued already, which is how an access
ends, looks at the smallest entry once: so hardly any work piles up for one pop.
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
        """Make `piece` a candidate, unless it is queued already. Mutates `piece.usage.queue_number`."""
        if piece.usage.is_queued:
            self._correct_smallest()
            return
        self._enter(piece)

    def lower(self, piece: PieceT) -> None:
        """The key of `piece` may have decreased: a new entry replaces the one it has, if it has one."""
        if piece.usage.is_queued:
            self._enter(piece)

    def _enter(self, piece: PieceT) -> None:
        heapq.heappush(self._heap, self._entry(piece))
        if len(self._heap) > self._sweep_len:
            self._sweep()

    def pop(self) -> PieceT | None:
        """Take out the victim, or None when nothing is evictable. The caller evicts it, or pushes it again."""
        heap = self._heap
        while heap:
            if not self._correct_smallest():
                piece = heapq.heappop(heap)[2]
                piece.usage.queue_number = 0
                return piece
        return None

    def entries(self) -> Iterator[tuple[tuple[int, ...], PieceT]]:
        """Stored keys and pieces, in no order; of replaced ones none, of dropped ones some. For checks."""
        return ((key, piece) for key, number, piece in self._heap if number == piece.usage.queue_number)

    def _correct_smallest(self) -> bool:
        """Forget the smallest entry, or sift it down, if it is not right any more; returns whether that was so."""
        heap = self._heap
        key, number, piece = heap[0]
        if number != piece.usage.queue_number:
            heapq.heappop(heap)
            return True
        if not piece.is_evictable:
            heapq.heappop(heap)
            piece.usage.queue_number = 0
            return True
        if key != eviction_key(self.policy, piece.usage):
            heapq.heapreplace(heap, self._entry(piece))
            return True
        return False

    def _entry(self, piece: PieceT) -> tuple[tuple[int, ...], int, PieceT]:
        """A new entry for `piece`, which is its only one from now on."""
        self._num_pushed += 1
        piece.usage.queue_number = self._num_pushed
        return (eviction_key(self.policy, piece.usage), self._num_pushed, piece)

    def _sweep(self) -> None:
        kept = []
        for entry in self._heap:
            _, number, piece = entry
            if number != piece.usage.queue_number:
                continue
            if piece.is_evictable:
                kept.append(entry)
            else:
                piece.usage.queue_number = 0
        heapq.heapify(kept)
        self._heap = kept
