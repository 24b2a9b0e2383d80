"""What a cache must know and hold, worked out from what is written in each block, never from the tree.

Blocks have simulated contents: slot -> (namespace, all tokens up to this one), which is what real KV depends on.
"""

from __future__ import annotations

from collections.abc import Iterable

from ramet.radix import (
    DEFAULT_RETENTION,
    BlockCopy,
    BlockPool,
    BlockState,
    BlockTable,
    Expectation,
    PrefixCache,
    PrefixMatch,
    PrefixWatch,
    RetentionRange,
)

BLOCK_SIZE = 4
Slot = tuple[str | None, tuple[int, ...]]
Ranges = tuple[RetentionRange, ...]


class RecordingPool(BlockPool):
    """Knows what was allocated since the last step, and refuses an allocation on request.

    `notes` says what should be annotated to each block, `moves` between which blocks notes went over; `retentions` says
    what each block in a table or in the tree should be kept with: that goes over in the same way.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.fresh: set[int] = set()
        self.notes: dict[int, object] = {}
        self.moves: list[tuple[int, int]] = []
        self.retentions: dict[int, int] = {}
        self.num_allocations_to_fail = 0
        self.has_failed = False

    def allocate(self, num_blocks: int) -> list[int] | None:
        if num_blocks and self.num_allocations_to_fail:
            self.num_allocations_to_fail -= 1
            self.has_failed = True
            return None
        block_ids = super().allocate(num_blocks)
        self.fresh.update(block_ids or ())
        return block_ids

    def move_annotation(self, src_block_id: int, dst_block_id: int) -> None:
        super().move_annotation(src_block_id, dst_block_id)
        if src_block_id in self.notes:
            self.notes.setdefault(dst_block_id, self.notes.pop(src_block_id))
            self.moves.append((src_block_id, dst_block_id))
        if src_block_id in self.retentions:
            self.raise_retention(dst_block_id, self.retentions.pop(src_block_id))

    def raise_retention(self, block_id: int, retention: int) -> None:
        self.retentions[block_id] = max(self.retentions.get(block_id, 0), retention)

    def free(self, block_ids: Iterable[int]) -> None:
        block_ids = list(block_ids)
        super().free(block_ids)
        for block_id in block_ids:
            self.notes.pop(block_id, None)
            self.retentions.pop(block_id, None)
        self.fresh.difference_update(block_ids)


def common_len(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Running:
    """A sequence as the engine sees it."""

    def __init__(self, table: BlockTable, namespace: str | None, copies: list[BlockCopy], ranges: Ranges = ()) -> None:
        self.table = table
        self.ranges = ranges
        self.namespace = namespace
        self.copies = copies

    def history(self, position: int) -> Slot:
        return (self.namespace, tuple(self.table.token_ids[: position + 1]))


class Oracle:
    """What is written where, and what follows from it for each question.

    Attributes:
        running: the sequences that have a table.
        contents: block -> slot -> what is written there.
    """

    def __init__(self, cache: PrefixCache, pool: RecordingPool) -> None:
        self.cache = cache
        self.pool = pool
        self.running: list[Running] = []
        self.contents: dict[int, dict[int, Slot]] = {block_id: {} for block_id in range(cache.num_blocks)}

    def written(self, block_id: int) -> dict[int, Slot]:
        """What can be read from a block now, as far as the cache can know.

        Blocks allocated since the last step hold nothing of their owner's; and of a copied block the cache learns
        that the copy was carried out when the sequence commits.
        """
        if self.pool.state(block_id) == BlockState.FREE or block_id in self.pool.fresh:
            return {}
        for running in self.running:
            table = running.table
            if not table.is_tail_written and table.block_ids[table.num_committed_tokens // BLOCK_SIZE] == block_id:
                return {}
        return self.contents[block_id]

    def agreeing_slots(self, block_id: int, namespace: str | None, tokens: list[int], start: int, limit: int) -> int:
        slots = self.written(block_id)
        count = 0
        while start + count < min(limit, start + BLOCK_SIZE):
            if slots.get(count) != (namespace, tuple(tokens[: start + count + 1])):
                break
            count += 1
        return count

    def most_agreeing_slots(self, namespace: str | None, tokens: list[int], start: int, limit: int) -> int:
        block_ids = range(self.cache.num_blocks)
        return max(self.agreeing_slots(block_id, namespace, tokens, start, limit) for block_id in block_ids)

    def expected_whole(self, namespace: str | None, tokens: list[int], limit: int) -> int:
        """How many tokens are cached in whole blocks."""
        start = 0
        while self.cache.enable_sharing:
            if self.most_agreeing_slots(namespace, tokens, start, limit) < BLOCK_SIZE:
                break
            start += BLOCK_SIZE
        return start

    def expected_match(self, namespace: str | None, tokens: list[int], limit: int) -> tuple[int, int]:
        """num_tokens and num_pending_tokens of the right answer, by looking into every block."""
        if not self.cache.enable_sharing:
            return 0, 0
        start = self.expected_whole(namespace, tokens, limit)
        num_tokens = start + self.most_agreeing_slots(namespace, tokens, start, limit)
        agreed = num_tokens
        for running in self.running:
            table = running.table
            if running.namespace == namespace and table.num_committed_tokens == start:
                agreed = max(agreed, min(limit, common_len(table.token_ids, tokens)))
        return num_tokens, agreed - num_tokens

    def num_unused_blocks(self, also_used: Iterable[int]) -> int:
        used = set(also_used)
        for running in self.running:
            used.update(running.table.block_ids)
        return self.cache.num_blocks - len(used)

    def check_match(self, match: PrefixMatch, namespace: str | None, tokens: list[int], limit: int) -> None:
        expected = self.expected_match(namespace, tokens, limit)
        assert (match.num_tokens, match.num_pending_tokens) == expected
        assert match.num_tokens == BLOCK_SIZE * len(match.block_ids) + match.num_tail_tokens
        assert match.num_tail_tokens < BLOCK_SIZE
        for index, block_id in enumerate(match.block_ids):
            start = index * BLOCK_SIZE
            assert self.agreeing_slots(block_id, namespace, tokens, start, limit) == BLOCK_SIZE
            assert self.pool.state(block_id) == BlockState.TREE
        assert (match.tail_block_id is None) == (match.num_tail_tokens == 0)
        if match.tail_block_id is not None:
            start = BLOCK_SIZE * len(match.block_ids)
            assert self.agreeing_slots(match.tail_block_id, namespace, tokens, start, limit) >= match.num_tail_tokens
        assert (match.pending_table is None) == (match.num_pending_tokens == 0)

    def check_watches(self, watches: list[PrefixWatch]) -> None:
        """Each knows how much is cached; two have the same place just where they wait for the same block."""
        awaited: dict[PrefixWatch, object] = {}
        for watch in watches:
            tokens, start, namespace = watch.token_ids, watch.num_tokens, watch.namespace
            assert start == self.expected_whole(namespace, tokens, watch.limit)
            can_wait = self.cache.enable_sharing and start + BLOCK_SIZE <= watch.limit
            assert watch.next_key == (tuple(tokens[start : start + BLOCK_SIZE]) if can_wait else ())
            awaited[watch] = (namespace, tuple(tokens[: start + BLOCK_SIZE])) if can_wait else watch
            block_ids = watch.block_ids()
            assert len(block_ids) * BLOCK_SIZE == start
            for index, block_id in enumerate(block_ids):
                slots = self.agreeing_slots(block_id, namespace, tokens, index * BLOCK_SIZE, watch.limit)
                assert slots == BLOCK_SIZE
        for one in watches:
            for other in watches:
                assert (one.place == other.place) == (awaited[one] == awaited[other])

    def check_expectation(self, expectation: Expectation, namespace: str | None, tokens: list[int]) -> None:
        """It is on a piece of the tree that ends with tokens of its prefix; or counts no more, and has none."""
        piece = expectation.piece
        if piece is None:
            return
        path = list(piece.token_ids)
        node = piece.parent
        while node is not None and node.parent is not None:
            path = [*node.token_ids, *path]
            node = node.parent
        assert path == tokens[: len(path)]
        assert node is self.cache.tree.roots[namespace]

    # ---- a step ----------------------------------------------------------------------------------------------------

    def carry_out_copies(self) -> None:
        copies = [copy for running in self.running for copy in running.copies]
        destinations = [copy.dst_block_id for copy in copies]
        assert len(set(destinations)) == len(destinations)
        read = [dict(self.contents[copy.src_block_id]) for copy in copies]
        for block_id in self.pool.fresh:
            self.contents[block_id] = {}
        self.pool.fresh.clear()
        for copy, slots in zip(copies, read, strict=True):
            assert self.pool.state(copy.dst_block_id) == BlockState.PRIVATE
            self.contents[copy.dst_block_id] = {slot: slots[slot] for slot in range(copy.num_tokens)}
        for running in self.running:
            running.copies = []

    def write(self, running: Running, end: int) -> None:
        for position in range(running.table.num_computed_tokens, end):
            block_id = running.table.block_ids[position // BLOCK_SIZE]
            assert self.pool.state(block_id) == BlockState.PRIVATE, "a block of the tree must never be written"
            self.contents[block_id][position % BLOCK_SIZE] = running.history(position)

    def read_all(self, running: Running, end: int) -> None:
        for position in range(end):
            block_id = running.table.block_ids[position // BLOCK_SIZE]
            assert self.contents[block_id].get(position % BLOCK_SIZE) == running.history(position)

    # ---- retention -------------------------------------------------------------------------------------------------

    def note_retention(self, running: Running, is_committed: bool) -> None:
        """The blocks that are the tree's, or those that are not yet, should be kept as the sequence asks."""
        num_committed = running.table.num_committed_tokens // BLOCK_SIZE
        for index, block_id in enumerate(running.table.block_ids):
            if (index < num_committed) == is_committed:
                self.pool.raise_retention(block_id, self._asked_retention(running.ranges, index))

    def _asked_retention(self, ranges: Ranges, index: int) -> int:
        positions = range(index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE)
        covering = [r for r in ranges for p in positions if r.start <= p and (r.end is None or p < r.end)]
        return max((r.priority for r in covering), default=DEFAULT_RETENTION)

    def check_retention(self) -> None:
        for node in self.cache.tree.nodes():
            for block_id in node.block_ids:
                assert node.usage.retention == self.pool.retentions[block_id]
            for leaf in node.leaves.values():
                assert leaf.usage.retention == self.pool.retentions[leaf.block_id]
