"""PrefixTiers: what moves between the pool and the tiers, and when.

    down    a sequence has ended: tiers that take finished prefixes are offered its whole blocks;
            the pool gives up blocks: tiers that take evicted ones are offered them, before anybody writes there
    up      a waiting sequence is about to start, and a tier has more of its prefix than the tree: those blocks are
            loaded into the pool and committed to the tree, as if they had just been computed

Everything else then stays as it is: matching, sharing, locks and eviction know the tree only. It happens where a
sequence is admitted, so a queue of a thousand loads nothing that is not needed in this very step; it takes blocks as
any sequence does, never those that somebody runs on; and no more bytes a step than are copied in some ten
milliseconds, or the decodes of others would stall.

A copy may need memory that is not there, on a device above all. Then it is not made, and the prefix is computed again.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass

from ...radix.node import RadixNode
from ...radix.prefix_cache import PrefixCache, PrefixMatch
from ..prompt_logprobs import usable_match
from ..runner import BlockStorage
from ..sequence import Sequence
from .base import KVTier, TierStats

logger = logging.getLogger(__name__)

MAX_BYTES_PER_STEP = 32 << 20
"""Loaded in one step, and at least a block."""


@dataclass(frozen=True, slots=True)
class TieredStorage:
    """The pool's memory, and the tiers behind it, the fastest first."""

    blocks: BlockStorage
    tiers: tuple[KVTier, ...]

    def close(self) -> None:
        """Close the tiers, all of them, even if one of them raises. Idempotent."""
        with ExitStack() as stack:
            for tier in self.tiers:
                stack.callback(tier.close)


@dataclass(frozen=True, slots=True)
class CacheReset:
    """What came of forgetting: nothing is found any more in this process.

    Attributes:
        num_freed_blocks: in the pool.
        erasures: see `KVTier.clear`.
    """

    num_freed_blocks: int
    erasures: tuple[Future[None], ...] = ()

    def wait(self) -> int:
        """Until nothing is left in the tiers either. Returns num_freed_blocks. Not on the engine's thread.

        Raises:
            PrefixesKeptError: something is left in the directory.
        """
        for erasure in self.erasures:
            erasure.result()
        return self.num_freed_blocks


class PrefixTiers:
    """Belongs to an engine, whose cache it fills.

    Args:
        storage: the pool's memory with its tiers, the fastest first; None: there are none, and nothing is done.
    """

    def __init__(self, cache: PrefixCache, storage: TieredStorage | None = None) -> None:
        self._cache = cache
        self._storage = storage
        self._tiers = tiers = () if storage is None else storage.tiers
        self._finished_tiers = [tier for tier in tiers if tier.takes == "finished"]
        self._evicted_tiers = [tier for tier in tiers if tier.takes == "evicted"]
        self._num_blocks_left = 0
        if self._evicted_tiers:
            cache.tree.on_evict = self._on_evict

    @property
    def stats(self) -> dict[str, TierStats]:
        """By name. Snapshots."""
        return {tier.name: tier.stats for tier in self._tiers}

    def expect(self, sequence: Sequence) -> None:
        """A sequence has come that may be admitted soon."""
        num_blocks = sequence.num_reusable_tokens // self._cache.block_size
        for tier in self._tiers:
            tier.prefetch(sequence.request.cache_namespace, sequence.token_ids, num_blocks)

    def begin_pass(self) -> None:
        """A step is planned: so much may be loaded in it."""
        if self._storage is not None:
            self._num_blocks_left = max(1, MAX_BYTES_PER_STEP // self._storage.blocks.bytes_per_block)

    def restored(self, sequence: Sequence, match: PrefixMatch) -> PrefixMatch | None:
        """Load what the tiers have of a sequence beyond `match`, as far as it may use it. It needs no more room than
        before, for it needs as many blocks fewer as are loaded.

        Returns:
            What it may use now; None if there is more, but not in this step: then it had better wait.
        """
        while self._tiers:
            start = len(match.block_ids)
            tier, num_held = self._best_tier(sequence, start)
            if tier is None or sequence.num_restored_tokens >= sequence.num_tokens:
                break  # all was loaded once, and given up again: the pool is too busy
            if self._num_blocks_left <= 0:
                return None
            has_room = self._load(tier, sequence, start, start + min(num_held, self._num_blocks_left))
            match = usable_match(sequence, self._cache)[1]  # even if nothing came: something may have made room for it
            if not has_room:
                break
        return match

    def on_end(self, sequence: Sequence) -> None:
        """A running sequence is about to be released. What a failed or aborted one has computed is not kept."""
        table = sequence.block_table
        if not self._finished_tiers or sequence.finish_reason is None or table is None:
            return
        num_blocks = table.num_committed_tokens // self._cache.block_size
        for tier in self._finished_tiers:
            self._offer(tier, sequence.request.cache_namespace, table.token_ids, table.block_ids[:num_blocks], 0)

    def reset(self) -> CacheReset:
        """Forget what no running sequence holds in the pool, and all that the tiers have."""
        on_evict, self._cache.tree.on_evict = self._cache.tree.on_evict, None  # what is given up now is not to be kept
        try:
            num_freed_blocks = self._cache.reset()
        finally:
            self._cache.tree.on_evict = on_evict
        return CacheReset(num_freed_blocks, tuple(tier.clear() for tier in self._tiers))

    def close(self) -> None:
        """Close the tiers. Idempotent."""
        if self._storage is not None:
            self._storage.close()

    def _best_tier(self, sequence: Sequence, start: int) -> tuple[KVTier | None, int]:
        """The tier that has the most of the blocks from `start` on that a sequence may use, the fastest of several; and
        how many. None if there are none."""
        end = sequence.next_wanted_logits() // self._cache.block_size
        best, most = None, 0
        for tier in self._tiers if start < end else ():
            num_held = tier.num_held(sequence.request.cache_namespace, sequence.token_ids, start, end)
            if num_held > most:
                best, most = tier, num_held
        return best, most

    def _load(self, tier: KVTier, sequence: Sequence, start: int, end: int) -> bool:
        """Bring blocks [start, end) into the tree, whose blocks before `start` are there, as far as the tier has them.
        False: there is no room, in the pool or for the copy."""
        cache, size, storage = self._cache, self._cache.block_size, self._storage
        assert storage is not None
        namespace, token_ids = sequence.request.cache_namespace, sequence.token_ids
        match = cache.match(token_ids, namespace=namespace, max_tokens=start * size)
        opened = cache.acquire(token_ids, match, end * size, namespace=namespace, is_counted=False)
        if opened is None:
            return False
        table, copies = opened
        assert not copies
        assert table.num_computed_tokens == start * size
        try:
            # Not before: to make room may have pushed out of the tier what it had.
            data = tier.load(namespace, token_ids, start, end)
            num_loaded = len(data)
            if num_loaded:
                storage.blocks.write_blocks(table.block_ids[start : start + num_loaded], data)
                cache.commit(table, (start + num_loaded) * size)
        except (MemoryError, RuntimeError) as error:
            logger.warning("What the tier %r has of a prefix cannot be loaded, and is computed: %s", tier.name, error)
            return False
        finally:
            cache.release(table)
        self._num_blocks_left -= num_loaded
        sequence.num_restored_tokens += num_loaded * size
        return True

    def _on_evict(self, node: RadixNode, num_blocks: int) -> None:
        """The tree is about to drop the last blocks of `node`."""
        namespace, token_ids = self._cache.tree.namespace_of(node), _tokens_up_to(node)
        end = len(token_ids) // self._cache.block_size
        for tier in self._evicted_tiers:
            self._offer(tier, namespace, token_ids, node.block_ids[-num_blocks:], end - num_blocks)

    def _offer(self, tier: KVTier, namespace: Hashable, token_ids: list[int], block_ids: list[int], start: int) -> None:
        """Offer the blocks from `start` on, which are these. Where there is no memory for copies, they are not kept."""
        wanted = tier.wanted(namespace, token_ids, start, start + len(block_ids))
        if not wanted or self._storage is None:
            return
        try:
            blocks = self._storage.blocks.read_blocks(block_ids[wanted.start - start : wanted.stop - start])
            tier.offer(namespace, token_ids, wanted.start, blocks)
        except (MemoryError, RuntimeError) as error:
            logger.warning("%d blocks are not offered to the tier %r: %s", len(wanted), tier.name, error)


def _tokens_up_to(node: RadixNode) -> list[int]:
    """All tokens from the root to the end of the node's run. O(their number)."""
    runs: list[list[int]] = []
    ancestor: RadixNode | None = node
    while ancestor is not None:
        runs.append(ancestor.token_ids)
        ancestor = ancestor.parent
    return [token_id for run in reversed(runs) for token_id in run]
