"""PrefixWaits: who had better wait a step, because a running sequence is just computing more of its prefix.

See docs/adr/0002. It is worth it for as many tokens as a block has; and for fewer where the request says that siblings
share so much. It is never a deadlock: only running sequences have tables, and a running one advances or is preempted.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..radix.prefix_cache import BlockTable, PrefixCache, PrefixMatch
from ..radix.watches import PrefixWatch
from .sequence import Sequence


class PrefixWaits:
    """The answers of one pass. All that wait for the same block wait for the same sequence; so the running are asked
    who waits for them, and a thousand questions behind one prompt cost a look-up each.

    Args:
        running: who runs when the pass begins. O(running), and O(waiting for them).
    """

    def __init__(self, cache: PrefixCache, running: list[Sequence]) -> None:
        self._cache = cache
        self._running = running
        self._waiting: set[PrefixWatch] = set()
        self._others: set[Hashable] = set()
        tables = [sequence.block_table for sequence in running]
        for table in tables:
            if table is not None:
                self._add(table)

    def add(self, sequence: Sequence) -> None:
        """A sequence has begun to run: whoever waits for its next whole block waits for it now."""
        table = sequence.block_table
        assert table is not None
        self._add(table)

    def is_known(self, sequence: Sequence, watch: PrefixWatch) -> bool:
        """Whether it is found to wait without a match of its own."""
        if sequence.prompt_logprobs is None and watch in self._waiting:
            return True
        return bool(self._others) and self._place(sequence, watch) in self._others

    def is_worth_waiting(
        self, sequence: Sequence, watch: PrefixWatch | None, cached: PrefixMatch, usable: PrefixMatch
    ) -> bool:
        """Whether a running sequence is about to compute what this one needs next.

        Args:
            watch: of the sequence, or None; with it, the answer is known for all like it.
            cached: the longest prefix that the cache has.
            usable: what it may use of that: less where prompt logprobs are not known.
        """
        num_pending_tokens = usable.num_pending_tokens
        if sequence.wants_prompt_logprobs and self._are_logprobs_pending(cached):
            num_pending_tokens = max(num_pending_tokens, cached.num_pending_tokens)
        if num_pending_tokens == 0:
            return False
        shared_prefix_len = min(sequence.request.shared_prefix_len, sequence.num_reusable_tokens)
        is_shared = usable.num_tokens < shared_prefix_len <= usable.num_tokens + num_pending_tokens
        if num_pending_tokens < self._cache.block_size and not is_shared:
            return False
        if watch is not None:
            self._others.add(self._place(sequence, watch))
        return True

    def _add(self, table: BlockTable) -> None:
        """Of those that want its next whole block, each is taken to want all that the table goes on with."""
        if len(table.token_ids) - table.num_computed_tokens < self._cache.block_size:
            return
        start = table.num_committed_tokens
        key = tuple(table.token_ids[start : start + self._cache.block_size])
        self._waiting.update(self._cache.tree.watches.parked_at(table.node, start, key))

    def _are_logprobs_pending(self, cached: PrefixMatch) -> bool:
        """Whether what is pending will be computed with prompt logprobs: without them it is of no help."""
        table = cached.pending_table
        return table is not None and any(
            other.block_table is table and other.wants_prompt_logprobs for other in self._running
        )

    def _place(self, sequence: Sequence, watch: PrefixWatch) -> Hashable:
        """Sequences with the same place get the same answer: what they want next, and what they want with it."""
        request = sequence.request
        if sequence.prompt_logprobs is not None:
            return watch.place, request.prompt_logprobs_start, request.sampling_params.prompt_logprobs
        end = min(request.shared_prefix_len, sequence.num_reusable_tokens)
        if watch.num_tokens < end < watch.num_tokens + self._cache.block_size:
            return watch.node, watch.num_tokens, tuple(sequence.token_ids[watch.num_tokens : end])
        return watch.place
