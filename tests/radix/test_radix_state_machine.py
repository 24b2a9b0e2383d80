"""The cache against an oracle that knows only what is written in each block.

Blocks have simulated contents: slot -> (namespace, all tokens up to this one), which is what real KV depends on. The
machine plays an engine: it plans (acquire, fork, release, in any order), carries out the copies of a step (all reads
before any write), writes, checks that every sequence would read exactly its own history, and commits. What must be
matchable, and what must fit, is worked out from block contents and tables alone, never from the tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ramet.radix import EVICTION_POLICIES, BlockCopy, BlockPool, BlockState, BlockTable, PrefixCache, PrefixMatch
from ramet.radix.debug import render

BLOCK_SIZE = 4
MAX_TEXT_LEN = 40
NAMESPACES: tuple[str | None, ...] = (None, "other")
Slot = tuple[str | None, tuple[int, ...]]


class WatchedPool(BlockPool):
    """Knows what was allocated since the last step, and refuses an allocation on request.

    `notes` says what should be annotated to each block, `moves` between which blocks notes went over.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.fresh: set[int] = set()
        self.notes: dict[int, object] = {}
        self.moves: list[tuple[int, int]] = []
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

    def free(self, block_ids: Iterable[int]) -> None:
        block_ids = list(block_ids)
        super().free(block_ids)
        for block_id in block_ids:
            self.notes.pop(block_id, None)
        self.fresh.difference_update(block_ids)


def common_len(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Running:
    """A sequence as the engine sees it."""

    def __init__(self, table: BlockTable, namespace: str | None, copies: list[BlockCopy]) -> None:
        self.table = table
        self.namespace = namespace
        self.copies = copies

    def history(self, position: int) -> Slot:
        return (self.namespace, tuple(self.table.token_ids[: position + 1]))


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.sampled_from([6, 9, 13, 60]),
        policy=st.sampled_from(sorted(EVICTION_POLICIES)),
        enable_sharing=st.sampled_from([True, True, True, False]),
    )
    def start(self, num_blocks: int, policy: str, enable_sharing: bool) -> None:
        self.pool = WatchedPool(num_blocks)
        self.cache = PrefixCache(num_blocks, BLOCK_SIZE, policy, enable_sharing, pool=self.pool)
        self.contents: dict[int, dict[int, Slot]] = {block_id: {} for block_id in range(num_blocks)}
        self.running: list[Running] = []
        self.texts: list[list[int]] = [[]]
        self.remembered: list[tuple[list[int], str | None, PrefixMatch]] = []

    # ---- the oracle ------------------------------------------------------------------------------------------------

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

    def expected_match(self, namespace: str | None, tokens: list[int], limit: int) -> tuple[int, int]:
        """num_tokens and num_pending_tokens of the right answer, by looking into every block."""
        if not self.cache.enable_sharing:
            return 0, 0
        start = 0
        while True:
            block_ids = range(self.cache.num_blocks)
            best = max(self.agreeing_slots(block_id, namespace, tokens, start, limit) for block_id in block_ids)
            if best < BLOCK_SIZE:
                break
            start += BLOCK_SIZE
        num_tokens = start + best
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

    # ---- rules -----------------------------------------------------------------------------------------------------

    def draw_text(self, data: st.DataObject) -> list[int]:
        """A new text that mostly goes along with an old one to its end, or nearly."""
        old = data.draw(st.sampled_from(self.texts))
        cut = max(0, len(old) - data.draw(st.sampled_from([0, 0, 0, 1, 2, 5, 8])))
        text = old[:cut] + data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=9))
        if len(text) > MAX_TEXT_LEN:
            text = text[-9:]
        self.remember(text)
        return list(text)

    def remember(self, text: list[int]) -> None:
        self.texts = [*self.texts[-7:], list(text)]

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES), priority=st.integers(0, 2))
    def acquire(self, data: st.DataObject, namespace: str | None, priority: int) -> None:
        self.acquire_text(data, self.draw_text(data), namespace, priority)

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES), is_finished=st.booleans())
    def turn(self, data: st.DataObject, namespace: str | None, is_finished: bool) -> None:
        """A sequence that is computed in one go: one turn of a chat."""
        running = self.acquire_text(data, self.draw_text(data), namespace, 0)
        if running is None:
            return
        self.run_step(data, is_whole=True)
        if is_finished and running in self.running:
            self.end(running)

    def acquire_text(
        self, data: st.DataObject, tokens: list[int], namespace: str | None, priority: int
    ) -> Running | None:
        limit = max(0, len(tokens) - data.draw(st.sampled_from([0, 1, 1, 3, 6])))
        before = self.picture()
        match = self.cache.match(tokens, namespace=namespace, max_tokens=limit)
        assert self.picture() == before, "match must be pure"
        self.check_match(match, namespace, tokens, limit)
        return self.open(data, tokens, namespace, match, priority)

    def open(
        self, data: st.DataObject, tokens: list[int], namespace: str | None, match: PrefixMatch, priority: int = 0
    ) -> Running | None:
        num_tokens = max(match.num_tokens, len(tokens) + data.draw(st.sampled_from([-4, 0, 0, 3])))
        before = self.picture()
        fresh_match = self.cache.match(tokens, namespace=namespace, max_tokens=match.num_tokens)
        num_needed = -(-num_tokens // BLOCK_SIZE) - len(fresh_match.block_ids)
        fits = num_needed <= self.num_unused_blocks(fresh_match.block_ids)
        acquired = self.cache.acquire(tokens, match, num_tokens, namespace=namespace, priority=priority)
        if acquired is None:
            assert self.took_failure() or (not fits and self.picture() == before)
            return None
        assert fits
        table, copies = acquired
        assert table.token_ids is tokens
        assert table.num_computed_tokens == fresh_match.num_tokens
        running = Running(table, namespace, copies)
        self.running.append(running)
        return running

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES))
    def remember_match(self, data: st.DataObject, namespace: str | None) -> None:
        tokens = self.draw_text(data)
        self.remembered.append((tokens, namespace, self.cache.match(tokens, namespace=namespace)))

    @precondition(lambda self: self.remembered)
    @rule(data=st.data())
    def acquire_remembered(self, data: st.DataObject) -> None:
        tokens, namespace, match = self.remembered.pop(data.draw(st.integers(0, len(self.remembered) - 1)))
        self.open(data, tokens, namespace, match)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.running))
        table = parent.table
        cut = data.draw(st.integers(table.num_computed_tokens, len(table.token_ids)))
        tokens = table.token_ids[:cut] + data.draw(st.lists(st.integers(0, 2), max_size=3))
        assume(tokens)
        before = self.picture()
        forked = self.cache.fork(table, tokens)
        if forked is None:
            assert self.took_failure() or (self.num_unused_blocks(()) == 0 and self.picture() == before)
            return
        child_table, copies = forked
        num_shared = table.num_committed_tokens // BLOCK_SIZE
        assert child_table.block_ids[:num_shared] == table.block_ids[:num_shared]
        assert len(copies) <= 1
        if table.is_tail_written:
            assert child_table.num_computed_tokens == table.num_computed_tokens
        self.running.append(Running(child_table, parent.namespace, copies))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.running)))

    def end(self, running: Running) -> None:
        """Finish, abort or preempt, before or after the sequence's copies were carried out."""
        self.running.remove(running)
        self.cache.release(running.table)
        assert running.table.block_ids == []

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.run_step(data, is_whole=data.draw(st.booleans()))

    def run_step(self, data: st.DataObject, is_whole: bool) -> None:
        """A step of an engine: all that is left of every sequence, or some of some."""
        plan: list[tuple[Running, int]] = []
        for running in list(self.running):
            num_left = len(running.table.token_ids) - running.table.num_computed_tokens
            num_new = num_left if is_whole else data.draw(st.integers(0, num_left))
            if num_new == 0:
                continue
            end = running.table.num_computed_tokens + num_new
            if self.extend(running.table, end):
                plan.append((running, end))
            else:
                self.end(running)
        self.carry_out_copies()
        for running, end in plan:
            self.write(running, end)
        for running, end in plan:
            self.read_all(running, end)
        for running, end in plan:
            if end == len(running.table.token_ids):
                running.table.token_ids += data.draw(st.lists(st.integers(0, 2), max_size=2))
            self.commit(running, end)
            self.remember(running.table.token_ids)

    def extend(self, table: BlockTable, num_tokens: int) -> bool:
        before = self.picture()
        fits = -(-num_tokens // BLOCK_SIZE) - len(table.block_ids) <= self.num_unused_blocks(())
        if self.cache.extend(table, num_tokens):
            assert fits
            assert len(table.block_ids) * BLOCK_SIZE >= num_tokens
            return True
        assert self.took_failure() or (not fits and self.picture() == before)
        return False

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

    def commit(self, running: Running, end: int) -> None:
        table = running.table
        before, notes = list(table.block_ids), dict(self.pool.notes)
        self.cache.commit(table, end)
        for old, new in zip(before, table.block_ids, strict=True):
            if old != new:
                assert self.pool.state(old) == BlockState.FREE
                assert (old, new) in self.pool.moves or old not in notes
        self.read_all(running, end)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def annotate(self, data: st.DataObject) -> None:
        block_ids = data.draw(st.sampled_from(self.running)).table.block_ids
        assume(block_ids)
        block_id = data.draw(st.sampled_from(block_ids))
        self.pool.notes[block_id] = payload = object()
        self.cache.annotate(block_id, payload)

    @rule()
    def reset(self) -> None:
        num_unused = self.num_unused_blocks(())
        assert self.cache.num_free_blocks + self.cache.reset() == num_unused == self.cache.num_free_blocks
        assert self.cache.num_evictable_blocks == 0

    @rule()
    def fail_an_allocation(self) -> None:
        self.pool.num_allocations_to_fail = 1

    # ---- after every rule ------------------------------------------------------------------------------------------

    def picture(self) -> tuple[Any, ...]:
        return render(self.cache), self.cache.stats, self.pool.free_ids()

    def took_failure(self) -> bool:
        """An allocation was made to fail since the last time this was asked."""
        has_failed, self.pool.has_failed = self.pool.has_failed, False
        return has_failed

    @invariant()
    def holds(self) -> None:
        self.cache.check_invariants()
        for src_block_id, dst_block_id in self.pool.moves:  # notes are about tokens: both blocks must hold the same
            src, dst = self.contents[src_block_id], self.contents[dst_block_id]
            assert src
            assert all(src[slot] == dst[slot] for slot in src.keys() & dst.keys())
        self.pool.moves.clear()
        for block_id in range(self.cache.num_blocks):
            assert self.cache.annotation(block_id) is self.pool.notes.get(block_id)
        assert self.cache.num_available_blocks == self.num_unused_blocks(())
        for running in self.running:
            table = running.table
            self.read_all(running, table.num_computed_tokens if table.is_tail_written else table.num_committed_tokens)
        if not self.cache.enable_sharing and not self.running:
            assert self.cache.num_free_blocks == self.cache.num_blocks


def run_machine(max_examples: int, num_steps: int) -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        CacheMachine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=num_steps,
            deadline=None,
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
        ),
    )


def test_cache_agrees_with_the_oracle() -> None:
    run_machine(max_examples=200, num_steps=50)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_cache_agrees_with_the_oracle_for_long() -> None:
    run_machine(max_examples=3000, num_steps=100)
