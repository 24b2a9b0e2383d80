"""PrefixCache: what an engine talks to. It owns every move of a block between the pool, the tree and the sequences.

The life of a sequence, and the only calls that change anything:

    match      which blocks are known for these tokens?             pure
    acquire    lock them, get private blocks for the rest           -> BlockTable, copies to carry out
    extend     more private blocks                                  before each step that needs them
    commit     these tokens' KV is written now                      after each step; full blocks become the tree's
    fork       a second table that shares everything so far         -> BlockTable, copies to carry out
    release    finished, aborted or preempted                       the computed blocks stay in the tree, unlocked

Before it is acquired, a sequence can `watch` how much of it is cached (watches.py). What is left of it once it is
released may be expected to be used again (expectations.py).

A call that cannot get its blocks says so (None or False) and has changed nothing. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from .block_pool import BlockPool
from .block_table import BlockCopy, BlockTable
from .errors import CacheUsageError, InvariantViolation
from .eviction import make_eviction_policy
from .expectations import Expectation
from .insertion import Insertion
from .invariants import find_violations
from .node import PartialLeaf, RadixNode
from .open_tables import OpenTables
from .prefix_match import PrefixMatch, find_match, find_tail, match_limit, num_locked_blocks
from .retention import Retention
from .stats import CacheStats
from .tree import RadixTree
from .walk import Tail, Walk
from .watches import PrefixWatch

__all__ = ["BlockCopy", "BlockTable", "CacheStats", "PrefixCache", "PrefixMatch"]


class PrefixCache:
    """Prefix cache over `num_blocks` blocks of `block_size` token slots.

    Args:
        num_blocks: ids are 0 .. num_blocks - 1.
        block_size: token slots in a block.
        eviction_policy: a name from EVICTION_POLICIES: lru, lfu, slru, fifo, priority or steps-to-execution.
        enable_sharing: False makes each sequence its own: match finds nothing, and nothing stays after release.
            Forks still share with what they were forked from.
        keeps_expected: whatever the policy, what somebody expects to be used again is evicted after all else.
        pool: the block pool, if it is to be another than a new BlockPool(num_blocks).

    Attributes:
        pool, tree, open_tables: for reading only.
        expectations: those that releases have placed, to be changed, dropped or retired.

    Raises:
        CacheUsageError: an argument is out of range.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        eviction_policy: str = "lru",
        enable_sharing: bool = True,
        *,
        keeps_expected: bool = False,
        pool: BlockPool | None = None,
    ) -> None:
        if block_size < 1:
            raise CacheUsageError(f"block_size={block_size} is not allowed: it must be at least 1")
        self.block_size = block_size
        self.enable_sharing = enable_sharing
        self.pool = pool or BlockPool(num_blocks)
        if self.pool.num_blocks != num_blocks:
            raise CacheUsageError(f"num_blocks={num_blocks} does not fit the pool's {self.pool.num_blocks}")
        policy = make_eviction_policy(eviction_policy, keeps_expected=keeps_expected)
        self.tree = RadixTree(block_size, policy, num_blocks)
        self.expectations = self.tree.expectations
        self.open_tables = OpenTables(block_size)
        self._stats = CacheStats()
        self._insertion = Insertion(self.pool, self.tree, self._stats)

    # ---- counts ----------------------------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        return self.pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        return self.pool.num_free

    @property
    def num_tree_blocks(self) -> int:
        return self.pool.num_tree

    @property
    def num_private_blocks(self) -> int:
        return self.pool.num_private

    @property
    def num_evictable_blocks(self) -> int:
        """Tree blocks that no running sequence has in its table."""
        return self.pool.num_tree - self.tree.num_locked_blocks

    @property
    def num_available_blocks(self) -> int:
        """Blocks that can be had now: free or evictable."""
        return self.num_free_blocks + self.num_evictable_blocks

    @property
    def stats(self) -> CacheStats:
        """A snapshot."""
        return replace(self._stats)

    def num_locked_blocks(self, match: PrefixMatch) -> int:
        """How many of the matched blocks some running sequence holds already: acquiring those takes no room. The others
        count as available until then. O(nodes on the path)."""
        return num_locked_blocks(self.tree, match)

    # ---- the life of a sequence ------------------------------------------------------------------------------------

    def match(
        self,
        token_ids: Sequence[int],
        *,
        namespace: Hashable = None,
        max_tokens: int | None = None,
        watch: PrefixWatch | None = None,
    ) -> PrefixMatch:
        """The longest prefix of `token_ids` whose KV is known in `namespace`. Mutates nothing. O(tokens).

        Args:
            max_tokens: look at that many tokens only. Pass len - 1 where the last token must be computed.
            watch: of the same list, namespace and max_tokens: it knows the whole blocks, so that is O(blocks).

        Raises:
            CacheUsageError: max_tokens is negative, or the watch is of something else.
        """
        limit = match_limit(len(token_ids), max_tokens)
        root = self.tree.find_root(namespace)
        if not self.enable_sharing:
            return PrefixMatch(root, (), 0, version=self._version)
        if watch is not None:
            watch.check_asks(token_ids, limit, namespace)
        tokens = token_ids if isinstance(token_ids, list) else list(token_ids)
        walk = self.tree.walk(root, tokens, limit) if watch is None else self.tree.walk_to(watch)
        return find_match(self.tree, self.open_tables, walk, tokens, limit, self._version)

    def watch(self, token_ids: list[int], *, namespace: Hashable = None, max_tokens: int | None = None) -> PrefixWatch:
        """Keep count of the whole blocks of `token_ids` that `match` would find, from now until `unwatch`. O(tokens).

        Whatever puts a block where the watch waits for it, or evicts one that it counted, brings it up to date; other
        watches cost those calls nothing. With enable_sharing=False it always has 0 tokens.

        Args:
            token_ids: the sequence's list, kept by reference: it must not change while it is watched.

        Raises:
            CacheUsageError: max_tokens is negative.
        """
        limit = match_limit(len(token_ids), max_tokens)
        return self.tree.watch(namespace, token_ids, limit if self.enable_sharing else 0)

    def unwatch(self, watch: PrefixWatch) -> None:
        """End the watch. O(1). Raises CacheUsageError if it has ended already."""
        watch.check_live()
        self.tree.unwatch(watch)

    def acquire(
        self,
        token_ids: list[int],
        match: PrefixMatch,
        num_tokens: int,
        *,
        namespace: Hashable = None,
        priority: int = 0,
        retention: Retention = (),
        is_counted: bool = True,
    ) -> tuple[BlockTable, list[BlockCopy]] | None:
        """Open a table for a sequence: shares what `match` found, with room for `num_tokens` tokens in all.

        Evicts unlocked blocks if need be. The caller carries out the copies before the step writes; if it releases
        the table before that, it must drop them. The source of a copy, and what was annotated to it, may be evicted
        by this very call: read the annotation before.

        Args:
            token_ids: the sequence's live list, kept by reference. It must be the list, or a copy of the list, that
                was matched.
            match: of these tokens in the same namespace. If blocks were freed or nodes split since, the tokens are
                matched again up to match.num_tokens, so the table may have fewer computed tokens than the match.
            num_tokens: may be more than there are tokens yet; at least match.num_tokens.
            retention: which of its tokens to keep for longer than others, or not so long, once the sequence is done.
            is_counted: it is a sequence's: `stats` counts its tokens.

        Returns:
            The table, with num_computed_tokens = match.num_tokens, and the copies; or None if there is not enough
            room, and then nothing has changed.

        Raises:
            CacheUsageError: num_tokens is too small, or the match is from another namespace.
        """
        if num_tokens < match.num_tokens or match.num_tokens > len(token_ids):
            raise CacheUsageError(
                f"num_tokens={num_tokens} for {len(token_ids)} tokens is not allowed: the match alone covers "
                f"{match.num_tokens}; pass at least that many, and the tokens that were matched"
            )
        if match.version != self._version:
            match = self.match(token_ids, namespace=namespace, max_tokens=match.num_tokens)
        if not self.enable_sharing:
            namespace = object()  # a tree of its own
        node = match.node
        if match.block_ids and self.tree.roots.get(namespace) is not self.tree.root_of(node):
            raise CacheUsageError(f"namespace={namespace!r} is not the one the match is from: match and acquire in one")
        num_node_blocks = len(match.block_ids) - node.start // self.block_size
        num_private = -(-num_tokens // self.block_size) - len(match.block_ids)
        num_kept = len(match.block_ids) - self.num_locked_blocks(match)  # evictable, but not once this table is open
        if num_private + num_kept > self.num_available_blocks:
            return None
        node = self.tree.split(node, num_node_blocks) if match.block_ids else self.tree.root(namespace)
        tail = Tail(match.num_tail_tokens, match.tail_block_id, match.tail_owner)
        opened = self._open(token_ids, node, list(match.block_ids), tail, num_private, priority, retention)
        if opened is not None:
            self._insertion.retain_path(opened[0])
            self._stats.num_queried_tokens += len(token_ids) * is_counted
            self._stats.num_hit_tokens += match.num_tokens * is_counted
        return opened

    def extend(self, table: BlockTable, num_tokens: int) -> bool:
        """Give the table room for `num_tokens` tokens in all; evicts if need be. False: no room, nothing changed."""
        table.check_live()
        missing = -(-num_tokens // self.block_size) - len(table.block_ids)
        if missing <= 0:
            return True
        block_ids = self._allocate(missing)
        if block_ids is None:
            return False
        table.block_ids += block_ids
        return True

    def commit(self, table: BlockTable, num_computed_tokens: int) -> None:
        """The KV of the first `num_computed_tokens` tokens is in the table's blocks now.

        Blocks that became full are the tree's from here on. Where the tree had the same block already, the table is
        pointed to it, in place, and its own is freed. O(1) if no block became full.

        Raises:
            CacheUsageError: the number goes back, or beyond the tokens or blocks there are.
        """
        before = table.num_computed_tokens  # called for every sequence in every step: what is cheap is written out
        if (
            table.is_released
            or not before <= num_computed_tokens <= len(table.token_ids)
            or num_computed_tokens > len(table.block_ids) * self.block_size
        ):
            table.refuse_commit(num_computed_tokens, self.block_size)
        if num_computed_tokens > before:
            table.num_computed_tokens = num_computed_tokens
            table.is_tail_written = True  # the step ran, and its copies before it
        if num_computed_tokens - table.num_committed_tokens >= self.block_size:
            self.open_tables.remove(table)
            self._insertion.insert_blocks(table)
            self.open_tables.add(table)
        else:
            self.open_tables.refresh(table)

    def fork(self, table: BlockTable, token_ids: list[int]) -> tuple[BlockTable, list[BlockCopy]] | None:
        """Open a second table for a sequence that begins with all tokens computed in `table`.

        Full blocks are shared, the partial one is copied. The copies are carried out as those of acquire. If the
        partial block of `table` is itself a copy that has not been carried out, its tokens are left to be computed
        again, unless another block has them: the new table's num_computed_tokens says. `token_ids` is the new
        sequence's own live list. None if there is no block for the copy, and then nothing has changed.

        Raises:
            CacheUsageError: the tokens computed in `table` are not the first of `token_ids`.
        """
        table.check_live()
        limit = table.num_computed_tokens
        if token_ids is table.token_ids or token_ids[:limit] != table.token_ids[:limit]:
            raise CacheUsageError(
                f"token_ids cannot be forked from this table: they must be another list that begins with the "
                f"{limit} tokens computed in it"
            )
        start = table.num_committed_tokens
        shared = table.block_ids[: start // self.block_size]
        walk = Walk(table.node, len(table.node.block_ids), shared)
        tail = find_tail(self.tree, self.open_tables, walk, token_ids, start, limit)[0]
        num_private = int(tail.num_tokens > 0)
        return self._open(token_ids, table.node, shared, tail, num_private, table.priority, table.retention)

    def release(self, table: BlockTable, *, keeps_tail: bool = True, expectation: Expectation | None = None) -> None:
        """The sequence is finished, aborted or preempted: unlock its blocks, free the private ones.

        Its partial block stays in the tree as a source of copies, unless the tree has those tokens already or
        `keeps_tail` is off. With enable_sharing=False nothing stays. From now on `expectation` is of what stays.

        Raises:
            CacheUsageError: the table was released before.
        """
        table.check_live()
        self.open_tables.remove(table)
        node = table.node
        end: RadixNode | PartialLeaf = node
        if self.enable_sharing and keeps_tail and table.is_tail_written and table.num_tail_tokens:
            end = self._insertion.insert_tail(table)
        self.pool.free(reversed(table.block_ids[table.num_committed_tokens // self.block_size :]))
        self.tree.touch(node, table.priority, is_hit=False)
        self.tree.unlock(node)
        if expectation is not None and self.enable_sharing:
            self.tree.expectations.place(expectation, end)
        if not self.enable_sharing:
            self.pool.free(self.tree.prune(node))
        table.block_ids = []
        table.is_released = True

    # ---- the rest --------------------------------------------------------------------------------------------------

    def reset(self) -> int:
        """Forget everything that no running sequence uses; returns how many blocks that freed."""
        dropped = self.tree.evict(self.num_blocks)
        self.pool.free(dropped)
        return len(dropped)

    def annotate(self, block_id: int, payload: object) -> None:
        """Keep `payload` beside the block, until the block is freed. If the block turns out to be a duplicate of one
        in the tree, the payload goes over to that one, unless it has its own.

        Raises:
            CacheUsageError: the block is not in use.
        """
        self.pool.annotate(block_id, payload)

    def annotation(self, block_id: int) -> object | None:
        """What was annotated to the block, or None."""
        return self.pool.annotation(block_id)

    def check_invariants(self) -> None:
        """Recount everything. O(blocks + tokens of running sequences): for tests, and on request.

        Raises:
            InvariantViolation: with a sentence for each contradiction.
        """
        violations = find_violations(self.pool, self.tree, self.open_tables)
        if violations:
            raise InvariantViolation(violations)

    # ---- inside ----------------------------------------------------------------------------------------------------

    @property
    def _version(self) -> int:
        """Moves whenever a match found earlier may name blocks or places that are no more."""
        return self.pool.num_frees + self.tree.num_splits

    def _allocate(self, num_blocks: int) -> list[int] | None:
        missing = num_blocks - self.num_free_blocks
        if missing > self.num_evictable_blocks:
            return None
        if missing > 0:
            evicted = self.tree.evict(missing)
            self.pool.free(evicted)
            self._stats.num_evicted_blocks += len(evicted)
        return self.pool.allocate(num_blocks)

    def _open(
        self,
        token_ids: list[int],
        node: RadixNode,
        shared_ids: list[int],
        tail: Tail,
        num_private: int,
        priority: int,
        retention: Retention,
    ) -> tuple[BlockTable, list[BlockCopy]] | None:
        """A live table on `node` with `num_private` blocks of its own, the first of which takes the tail."""
        if num_private > self.num_available_blocks:
            return None
        self.tree.lock(node)
        self.tree.touch(node, priority, is_hit=True, tail=tail.owner)  # first, so that the tail is evicted last
        private_ids = self._allocate(num_private)
        if private_ids is None:
            self.tree.unlock(node)
            return None
        copies = [] if tail.block_id is None else [BlockCopy(tail.block_id, private_ids[0], tail.num_tokens)]
        self._stats.num_copied_blocks += len(copies)
        table = BlockTable(
            token_ids=token_ids,
            block_ids=shared_ids + private_ids,
            num_computed_tokens=node.end + tail.num_tokens,
            num_committed_tokens=node.end,
            node=node,
            priority=priority,
            retention=retention,
            is_tail_written=not copies,
        )
        self.open_tables.add(table)
        return table, copies
