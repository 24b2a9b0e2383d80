"""Expectations: when a cached prefix will be asked for again, as far as somebody outside the cache knows.

An eviction policy looks back: what was not used for long goes first. Who runs programs of many calls can look ahead:
this text is the state of an agent that waits for a tool, that one is about to be forked, the other's program is over.
It says so with a number for a prefix: *steps*, about how many other calls come before the prefix is used again. (The
idea is KVFlow's, arXiv 2507.07400.) The cache keeps the number where the prefix ends, and policies may order by it:

      [system prompt] ---- [agent A so far]        in 2 steps
              |
              +----------- [agent B so far]        in 0 steps: goes last
              |
              +----------- [agent C so far]        UNKNOWN: it goes on, nobody knows when
              |
              +----------- [agent D, ended]        NEVER: goes first

Only the end of a prefix needs the number. What is before it has a continuation, and only pieces without continuations
are evicted. When the piece at the end is evicted, the expectation moves on to the piece before, as a watch does. So
placing, changing and dropping one costs no walk; an eviction costs a dict look-up where nothing is expected.

What nobody has placed an expectation on is UNKNOWN too. Where the last one is retired, the piece becomes NEVER, until
somebody uses it all the same; and so do those before it that nothing else continues. The system prompt above is shared:
once its turn comes it is UNKNOWN.

An expectation is a preference and no lock: when only expected pieces are left, they are evicted. And it is believed for
a time only: once as many blocks were evicted as the whole cache holds MAX_TURNOVERS times, and nobody has come or
repeated it, it counts no more. Otherwise a thousand states that are open and forgotten would hold the cache for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .errors import CacheUsageError
from .eviction import NEVER, UNKNOWN
from .node import PartialLeaf, RadixNode

MAX_TURNOVERS = 4


@dataclass(eq=False, slots=True)
class Expectation:
    """That a prefix will be used again in about `steps` steps. Made by the caller, placed and moved by the cache.

    Attributes:
        steps: from 0 (at once) on; UNKNOWN, or NEVER.
        piece: the node or partial leaf that the prefix ends with, as far as it is still cached; None where nothing of
            it is, or before it is placed.
        since: how many blocks had been evicted when it was last placed or changed.

    Raises:
        CacheUsageError: steps is not an integer from 0 to NEVER.
    """

    steps: int
    piece: RadixNode | PartialLeaf | None = field(default=None, repr=False)
    since: int = 0

    def __post_init__(self) -> None:
        check_steps(self.steps)


def check_steps(steps: object) -> None:
    """Raise CacheUsageError unless it is an integer from 0 to NEVER."""
    if isinstance(steps, bool) or not isinstance(steps, int) or not 0 <= steps <= NEVER:
        raise CacheUsageError(
            f"steps={steps!r} is not allowed: it must be an integer from 0, or one of UNKNOWN ({UNKNOWN}) and NEVER"
        )


class Expectations:
    """All placed expectations of a tree. The tree tells when pieces are dropped and blocks evicted.

    Args:
        max_evictions: how many evicted blocks an expectation outlives.
        on_lower: called with a piece that is expected later than before, so that it may have to go sooner.
    """

    def __init__(self, max_evictions: int, on_lower: Callable[[RadixNode | PartialLeaf], None]) -> None:
        self._max_evictions = max_evictions
        self._on_lower = on_lower
        self._num_evictions = 0
        self._placed: dict[RadixNode | PartialLeaf, dict[Expectation, None]] = {}
        self._by_age: dict[Expectation, None] = {}  # the one that was placed or changed longest ago first

    def __len__(self) -> int:
        return len(self._by_age)

    def __contains__(self, piece: RadixNode | PartialLeaf) -> bool:
        """Whether an expectation is placed on the piece."""
        return piece in self._placed

    def place(self, expectation: Expectation, piece: RadixNode | PartialLeaf) -> None:
        """Expect that what ends with `piece` will be used; nowhere if that is a root. O(expectations there)."""
        self.drop(expectation)
        if piece.parent is None:
            return
        expectation.piece, expectation.since = piece, self._num_evictions
        self._placed.setdefault(piece, {})[expectation] = None
        self._by_age[expectation] = None
        self._refresh(piece)

    def change(self, expectation: Expectation, steps: int) -> None:
        """Expect the use in so many steps from now on. O(expectations there).

        Raises:
            CacheUsageError: steps is out of range.
        """
        check_steps(steps)
        expectation.steps = steps
        if expectation.piece is not None:
            expectation.since = self._num_evictions
            self._by_age[expectation] = self._by_age.pop(expectation)
            self._refresh(expectation.piece)

    def drop(self, expectation: Expectation) -> None:
        """It counts no more. Nothing happens if it is not placed. O(expectations there)."""
        piece, expectation.piece = expectation.piece, None
        if piece is None:
            return
        del self._by_age[expectation]
        del self._placed[piece][expectation]
        if not self._placed[piece]:
            del self._placed[piece]
        self._refresh(piece)

    def retire(self, expectation: Expectation, num_shared_tokens: int = 0) -> None:
        """Nobody will come any more. Where nobody else is expected either, what it was of goes first, and so does what
        is before it as far as nothing else continues that. O(expectations there + pieces).

        Args:
            num_shared_tokens: so many tokens at the beginning were others' before, and stay as good as they are.
        """
        piece = expectation.piece
        self.drop(expectation)
        while piece is not None and piece not in self._placed:
            parent = piece.parent
            if parent is None or parent.end < num_shared_tokens:
                return
            self._refresh(piece, NEVER)
            if len(parent.sorted_keys) > 1:
                return
            piece = parent

    def on_drop(self, piece: RadixNode | PartialLeaf, parent: RadixNode) -> None:
        """`piece` is no more: what was expected of it is expected of its parent, as far as that is of use."""
        moved = self._placed.pop(piece, None)
        if moved is None:
            return
        if parent.parent is None:
            for expectation in moved:
                expectation.piece = None
                del self._by_age[expectation]
            return
        for expectation in moved:
            expectation.piece = parent
        self._placed.setdefault(parent, {}).update(moved)
        self._refresh(parent)

    def on_eviction(self, num_blocks: int) -> None:
        """So many blocks are about to be evicted; what is expected for too long counts no more. O(1) amortised."""
        self._num_evictions += num_blocks
        while self._by_age:
            oldest = next(iter(self._by_age))
            if oldest.since + self._max_evictions >= self._num_evictions:
                return
            self.drop(oldest)

    def _refresh(self, piece: RadixNode | PartialLeaf, steps_of_rest: int = UNKNOWN) -> None:
        steps = min((expectation.steps for expectation in self._placed.get(piece, ())), default=steps_of_rest)
        before, piece.usage.steps_to_use = piece.usage.steps_to_use, steps
        if steps > before:
            self._on_lower(piece)

    def entries(self) -> Iterator[tuple[RadixNode | PartialLeaf, Expectation]]:
        """Every placed expectation with the piece it is filed under. For checks."""
        for piece, expectations in self._placed.items():
            for expectation in expectations:
                yield piece, expectation
