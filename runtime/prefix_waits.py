"""PrefixWaits: who had better wait a step, because a running sequence is just computing more of its prefix, and which.

See docs/adr/0002. It is worth it for as many tokens as a block has; and for fewer where the request says that siblings
share so much. It is never a deadlock: only running sequences have tables, and a running one advances or is preempted.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..radix.prefix_cache import BlockTable, PrefixCache, PrefixMatch
from ..radix.watches import PrefixWatch, WatchGroup
from .sequence import Sequence

PrefixWait = tuple[Sequence, Sequence]
"""One who waits, and the running one that is computing its prefix."""


class PrefixWaits:
    """The answers of one pass. All that wait for the same block wait for the same sequence; so the running are asked
    who waits for them, and a thousand questions behind one prompt cost a look-up each.

    Args:
        running: who runs when the pass begins. O(running).
    """

    def __init__(self, cache: PrefixCache, running: list[Sequence]) -> None:
        self._cache = cache
        self._running = running
        self._source_of: dict[WatchGroup, Sequence] = {}
        self._others: dict[Hashable, Sequence] = {}
        for sequence in running.copy():
            if sequence.block_table is not None:
                self._add(sequence, sequence.block_table)

    def add(self, sequence: Sequence) -> None:
        """A sequence has begun to run: whoever waits for its next whole block waits for it now."""
        assert sequence.block_table is not None
        self._add(sequence, sequence.block_table)

    def sources_of(self, sequences: list[Sequence], watches: list[PrefixWatch]) -> list[Sequence | None]:
        """For each whom it is found to wait for so far; None where that takes a match, or it does not wait."""
        if not self._source_of:
            return []
        source_of = self._source_of.get
        return [
            source_of(watch.group) if sequence.prompt_logprobs is None else None
            for sequence, watch in zip(sequences, watches, strict=True)
        ]

    def known_source(self, sequence: Sequence, watch: PrefixWatch | None) -> Sequence | None:
        """Whom it is found to wait for without a match of its own; None if that takes a match."""
        if watch is None:
            return None
        if sequence.prompt_logprobs is None:
            source = self._source_of.get(watch.group)
            if source is not None:
                return source
        return self._others.get(self._place(sequence, watch)) if self._others else None

    def find_source(
        self, sequence: Sequence, watch: PrefixWatch | None, cached: PrefixMatch, usable: PrefixMatch
    ) -> Sequence | None:
        """The running sequence that is about to compute what this one needs next, if that is worth waiting for.

        Args:
            watch: of the sequence, or None; with it, the answer is known for all like it.
            cached: the longest prefix that the cache has.
            usable: what it may use of that: less where prompt logprobs are not known.
        """
        num_pending_tokens, table = usable.num_pending_tokens, usable.pending_table
        if cached.num_pending_tokens > num_pending_tokens and sequence.wants_prompt_logprobs:
            owner = self._owner(cached.pending_table)
            if owner.wants_prompt_logprobs:  # computed without them, it is of no help
                num_pending_tokens, table = cached.num_pending_tokens, cached.pending_table
        if num_pending_tokens == 0:
            return None
        shared_prefix_len = min(sequence.request.shared_prefix_len, sequence.num_reusable_tokens)
        is_shared = usable.num_tokens < shared_prefix_len <= usable.num_tokens + num_pending_tokens
        if num_pending_tokens < self._cache.block_size and not is_shared:
            return None
        source = self._owner(table)
        if watch is not None:
            self._others[self._place(sequence, watch)] = source
        return source

    def _add(self, sequence: Sequence, table: BlockTable) -> None:
        """Of those that want its next whole block, each is taken to want all that the table goes on with."""
        if len(table.token_ids) - table.num_computed_tokens < self._cache.block_size:
            return
        start = table.num_committed_tokens
        key = tuple(table.token_ids[start : start + self._cache.block_size])
        group = self._cache.tree.watches.group_at(table.node, start, key)
        if group is not None:
            self._source_of.setdefault(group, sequence)

    def _owner(self, table: BlockTable | None) -> Sequence:
        return next(sequence for sequence in self._running if sequence.block_table is table)

    def _place(self, sequence: Sequence, watch: PrefixWatch) -> Hashable:
        """Sequences with the same place get the same answer: what they want next, and what they want with it."""
        request = sequence.request
        if sequence.prompt_logprobs is not None:
            return watch.place, request.prompt_logprobs_start, request.sampling_params.prompt_logprobs
        end = min(request.shared_prefix_len, sequence.num_reusable_tokens)
        if watch.num_tokens < end < watch.num_tokens + self._cache.block_size:
            return watch.node, watch.num_tokens, tuple(sequence.token_ids[watch.num_tokens : end])
        return watch.place
