"""WaitingQueue: the sequences without blocks. How much of each is cached, and how often it was overtaken, is known at
every moment without asking or counting.

New sequences stand in order of arrival, each with a watch of the cache (radix/watches.py). Those that ran before and
lost their blocks stand apart: they are few, most policies serve them first, and beams among them grow while they wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain, islice

from ..radix.prefix_cache import PrefixCache
from ..radix.watches import PrefixWatch
from .policies.base import SchedulePolicy, WaitingView
from .prefix_waits import PrefixWait, PrefixWaits
from .sequence import Sequence


def _arrival_idx(sequence: Sequence) -> int:
    return sequence.arrival_idx


class WaitingQueue:
    """Iterates over the returning ones first, then over the new ones, each in order of arrival.

    Args:
        cache: is asked to watch the prefix of every new sequence, from add to remove. O(tokens) on arrival.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._new: list[Sequence] = []
        self._watches: list[PrefixWatch] = []
        self._arrivals: list[int] = []
        self._num_arrivals = 0
        self._returning: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._returning) + len(self._new)

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self._returning, self._new)

    def __getitem__(self, part: slice) -> list[Sequence]:
        return [*self._returning, *self._new][part]

    @property
    def returning(self) -> tuple[Sequence, ...]:
        """Those that ran before, in order of arrival."""
        return tuple(self._returning)

    def add(self, sequence: Sequence) -> None:
        """A sequence that never ran. Its tokens must not change while it waits."""
        assert not self._new or self._new[-1].arrival_idx < sequence.arrival_idx, "arrivals come in order"
        watch = self._cache.watch(
            sequence.token_ids,
            namespace=sequence.request.cache_namespace,
            max_tokens=sequence.num_reusable_tokens,
        )
        self._new.append(sequence)
        self._watches.append(watch)
        self._arrivals.append(self._num_arrivals)
        self._num_arrivals += 1

    def add_returning(self, sequence: Sequence) -> None:
        """A sequence that lost its blocks, or a beam that found none. It may get more tokens while it waits."""
        insort(self._returning, sequence, key=_arrival_idx)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence, wherever it stands. O(log length) comparisons."""
        position = bisect_left(self._new, sequence.arrival_idx, key=_arrival_idx)
        if position == len(self._new) or self._new[position] is not sequence:
            self._returning.remove(sequence)
            return
        del self._new[position], self._arrivals[position]
        self._cache.unwatch(self._watches.pop(position))

    def in_order(
        self, policy: SchedulePolicy, running: list[Sequence], waits: PrefixWaits, passed_over: list[PrefixWait]
    ) -> Iterator[tuple[Sequence, PrefixWatch | None]]:
        """Who is served when, as of this call, with the watches of the new ones. The queue may change meanwhile.

        Nothing is ranked before it is needed: one who returns and does not fit costs no order of the others, and whom
        `waits` knows to wait is not ranked at all.

        Args:
            passed_over: those are entered here, in order of arrival.
        """
        returning = self._returning.copy()
        view = self._view(running, waits, passed_over)
        if returning and not policy.is_returning_first:
            yield from _merged(policy, returning, view)
            return
        for sequence in returning:
            yield sequence, None
        ranks = policy.ranks(view)
        if not ranks:
            return
        first = ranks.index(min(ranks))  # most passes admit one or none: they need no more than that
        yield view.sequences[first], view.watches[first]
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        for position in islice(order, 1, None):
            yield view.sequences[position], view.watches[position]

    def _view(self, running: list[Sequence], waits: PrefixWaits, passed_over: list[PrefixWait]) -> WaitingView:
        sequences, watches, arrivals = self._new, self._watches, self._arrivals
        num_left = self._num_arrivals - len(self._new)
        sources = waits.sources_of(sequences, watches)
        if not any(sources):
            places = range(num_left, num_left + len(sequences))
            return WaitingView(sequences.copy(), watches.copy(), arrivals.copy(), places, running)
        passed_over += [(waiter, source) for waiter, source in zip(sequences, sources, strict=True) if source]
        kept = [idx for idx, source in enumerate(sources) if source is None]
        return WaitingView(
            sequences=[sequences[idx] for idx in kept],
            watches=[watches[idx] for idx in kept],
            arrivals=[arrivals[idx] for idx in kept],
            places=[num_left + idx for idx in kept],
            running=running,
        )


def _merged(
    policy: SchedulePolicy, returning: list[Sequence], view: WaitingView
) -> Iterator[tuple[Sequence, PrefixWatch | None]]:
    sequences = returning + view.sequences
    watches: list[PrefixWatch | None] = [*[None] * len(returning), *view.watches]
    ranks = [*policy.ranks(WaitingView(returning, [], [], [], view.running)), *policy.ranks(view)]
    for position in sorted(range(len(ranks)), key=lambda idx: (ranks[idx], sequences[idx].arrival_idx)):
        yield sequences[position], watches[position]
