"""The cache against an oracle that knows only what is written in each block (cache_oracle.py).

The machine plays an engine: it watches, plans (acquire, fork, release, in any order), carries out the copies of a step
(all reads before any write), writes, checks that every sequence would read exactly its own history, and commits. What
must be matchable, and what must fit, is worked out from block contents and tables alone, never from the tree.
"""

from __future__ import annotations

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

from ramet.radix import (
    EVICTION_POLICIES,
    NEVER,
    UNKNOWN,
    BlockState,
    BlockTable,
    Expectation,
    PrefixCache,
    PrefixMatch,
    PrefixWatch,
    RetentionRange,
)
from ramet.radix.debug import render

from .cache_oracle import BLOCK_SIZE, Oracle, Ranges, RecordingPool, Running

MAX_TEXT_LEN = 40
MAX_NUM_WATCHES = 8
NAMESPACES: tuple[str | None, ...] = (None, None, None, "other")
RANGES: tuple[Ranges, ...] = (
    *[()] * 6,
    (RetentionRange(0, 6, 80),),
    (RetentionRange(0, None, 10),),
    (RetentionRange(0, None, 80),),
    (RetentionRange(6, None, 60),),
    (RetentionRange(4, 8, 50), RetentionRange(7, None, 20)),
    (RetentionRange(2, 12, 35), RetentionRange(12, 13, 0), RetentionRange(20, None, 100)),
)


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.sampled_from([6, 9, 13, 60]),
        policy=st.sampled_from(sorted(EVICTION_POLICIES)),
        enable_sharing=st.sampled_from([True, True, True, False]),
        keeps_expected=st.booleans(),
        lookahead=st.sampled_from([1, 2 * BLOCK_SIZE, 64]),
    )
    def start(self, num_blocks: int, policy: str, enable_sharing: bool, keeps_expected: bool, lookahead: int) -> None:
        self.pool = RecordingPool(num_blocks)
        self.cache = PrefixCache(
            num_blocks, BLOCK_SIZE, policy, enable_sharing, keeps_expected=keeps_expected, pool=self.pool
        )
        self.cache.tree.watches.lookahead = lookahead
        self.oracle = Oracle(self.cache, self.pool)
        self.running = self.oracle.running
        self.texts: list[list[int]] = [[]]
        self.remembered: list[tuple[list[int], str | None, PrefixMatch]] = []
        self.watches: list[PrefixWatch] = []
        self.expectations: list[tuple[Expectation, str | None, list[int]]] = []

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

    @precondition(lambda self: len(self.watches) < MAX_NUM_WATCHES)
    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES), num_left_out=st.sampled_from([0, 1, 1, 3, 6]))
    def watch(self, data: st.DataObject, namespace: str | None, num_left_out: int) -> None:
        tokens = self.draw_text(data) + data.draw(st.lists(st.integers(0, 2), max_size=3 * BLOCK_SIZE))
        max_tokens = max(0, len(tokens) - num_left_out)
        self.watches.append(self.cache.watch(tokens, namespace=namespace, max_tokens=max_tokens))

    @precondition(lambda self: 0 < len(self.watches) < MAX_NUM_WATCHES)
    @rule(data=st.data())
    def watch_alike(self, data: st.DataObject) -> None:
        """One more that goes along with another one, and they part somewhere or not at all."""
        other = data.draw(st.sampled_from(self.watches))
        cut = data.draw(st.integers(0, len(other.token_ids)))
        tokens = other.token_ids[:cut] + data.draw(st.lists(st.integers(0, 2), max_size=2 * BLOCK_SIZE))
        self.watches.append(self.cache.watch(tokens, namespace=other.namespace))

    @precondition(lambda self: self.watches)
    @rule(data=st.data())
    def unwatch(self, data: st.DataObject) -> None:
        watch = self.watches.pop(data.draw(st.integers(0, len(self.watches) - 1)))
        self.cache.unwatch(watch)
        watch.token_ids.clear()  # the caller may do with it what it likes now

    @precondition(lambda self: self.watches)
    @rule(data=st.data(), is_finished=st.booleans(), ranges=st.sampled_from(RANGES))
    def compute_what_is_awaited(self, data: st.DataObject, is_finished: bool, ranges: Ranges) -> None:
        """What a watch asks for, to its end or not, and perhaps in several steps."""
        watch = data.draw(st.sampled_from(self.watches))
        assume(watch.token_ids)
        end = data.draw(st.integers(1, len(watch.token_ids)))
        running = self.acquire_text(data, [*watch.token_ids[:end], 2], watch.namespace, 0, ranges)
        for _ in range(data.draw(st.integers(1, 3))):
            self.run_step(data, is_whole=data.draw(st.booleans()))
            self.holds()
        if is_finished and running in self.running:
            self.end(running)

    @precondition(lambda self: self.watches)
    @rule(data=st.data(), ranges=st.sampled_from(RANGES))
    def acquire_watched(self, data: st.DataObject, ranges: Ranges) -> None:
        watch = self.watches.pop(data.draw(st.integers(0, len(self.watches) - 1)))
        tokens, options = watch.token_ids, {"namespace": watch.namespace, "max_tokens": watch.limit}
        match = self.cache.match(tokens, **options, watch=watch)
        assert match == self.cache.match(tokens, **options)
        self.cache.unwatch(watch)
        self.open(data, tokens, watch.namespace, match, 0, ranges)

    @rule(
        data=st.data(),
        namespace=st.sampled_from(NAMESPACES),
        priority=st.integers(0, 2),
        ranges=st.sampled_from(RANGES),
    )
    def acquire(self, data: st.DataObject, namespace: str | None, priority: int, ranges: Ranges) -> None:
        self.acquire_text(data, self.draw_text(data), namespace, priority, ranges)

    @rule(
        data=st.data(),
        namespace=st.sampled_from(NAMESPACES),
        is_finished=st.booleans(),
        ranges=st.sampled_from(RANGES),
    )
    def turn(self, data: st.DataObject, namespace: str | None, is_finished: bool, ranges: Ranges) -> None:
        """A sequence that is computed in one go: one turn of a chat."""
        running = self.acquire_text(data, self.draw_text(data), namespace, 0, ranges)
        if running is None:
            return
        self.run_step(data, is_whole=True)
        if is_finished and running in self.running:
            self.end(running)

    @rule(
        data=st.data(),
        namespace=st.sampled_from(NAMESPACES),
        all_ranges=st.lists(st.sampled_from(RANGES), min_size=2, max_size=3),
    )
    def chat(self, data: st.DataObject, namespace: str | None, all_ranges: list[Ranges]) -> None:
        """Several short turns, each kept in its own way, with nothing between them."""
        text = self.draw_text(data)
        for ranges in all_ranges:
            running = self.acquire_text(data, list(text), namespace, 0, ranges)
            if running is None:
                return
            self.run_step(data, is_whole=True)
            if running in self.running:
                self.end(running)
            self.holds()
            self.retentions_are_the_highest_asked_for()
            text += data.draw(st.lists(st.integers(0, 2), max_size=3))

    def acquire_text(
        self, data: st.DataObject, tokens: list[int], namespace: str | None, priority: int, ranges: Ranges
    ) -> Running | None:
        limit = max(0, len(tokens) - data.draw(st.sampled_from([0, 1, 1, 3, 6])))
        before = self.picture()
        match = self.cache.match(tokens, namespace=namespace, max_tokens=limit)
        assert self.picture() == before, "match must be pure"
        self.oracle.check_match(match, namespace, tokens, limit)
        return self.open(data, tokens, namespace, match, priority, ranges)

    def open(
        self,
        data: st.DataObject,
        tokens: list[int],
        namespace: str | None,
        match: PrefixMatch,
        priority: int,
        ranges: Ranges,
    ) -> Running | None:
        num_tokens = max(match.num_tokens, len(tokens) + data.draw(st.sampled_from([-4, 0, 0, 3])))
        before = self.picture()
        fresh_match = self.cache.match(tokens, namespace=namespace, max_tokens=match.num_tokens)
        num_needed = -(-num_tokens // BLOCK_SIZE) - len(fresh_match.block_ids)
        fits = num_needed <= self.oracle.num_unused_blocks(fresh_match.block_ids)
        acquired = self.cache.acquire(
            tokens, match, num_tokens, namespace=namespace, priority=priority, retention=ranges
        )
        if acquired is None:
            assert self.took_failure() or (not fits and self.picture() == before)
            return None
        assert fits
        table, copies = acquired
        assert table.token_ids is tokens
        assert table.num_computed_tokens == fresh_match.num_tokens
        running = Running(table, namespace, copies, ranges)
        self.running.append(running)
        self.oracle.note_retention(running, is_committed=True)
        return running

    @rule(data=st.data(), namespace=st.sampled_from(NAMESPACES))
    def remember_match(self, data: st.DataObject, namespace: str | None) -> None:
        tokens = self.draw_text(data)
        self.remembered.append((tokens, namespace, self.cache.match(tokens, namespace=namespace)))

    @precondition(lambda self: self.remembered)
    @rule(data=st.data(), ranges=st.sampled_from(RANGES))
    def acquire_remembered(self, data: st.DataObject, ranges: Ranges) -> None:
        tokens, namespace, match = self.remembered.pop(data.draw(st.integers(0, len(self.remembered) - 1)))
        self.open(data, tokens, namespace, match, 0, ranges)

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
            assert self.took_failure() or (self.oracle.num_unused_blocks(()) == 0 and self.picture() == before)
            return
        child_table, copies = forked
        num_shared = table.num_committed_tokens // BLOCK_SIZE
        assert child_table.block_ids[:num_shared] == table.block_ids[:num_shared]
        assert len(copies) <= 1
        if table.is_tail_written:
            assert child_table.num_computed_tokens == table.num_computed_tokens
        self.running.append(Running(child_table, parent.namespace, copies, parent.ranges))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.running)))

    def end(self, running: Running) -> None:
        """Finish, abort or preempt, before or after the sequence's copies were carried out."""
        self.running.remove(running)
        self.oracle.note_retention(running, is_committed=False)
        self.cache.release(running.table)
        self.check_moves()
        assert running.table.block_ids == []

    @precondition(lambda self: self.running)
    @rule(data=st.data(), steps=st.sampled_from([0, 1, 3, UNKNOWN, NEVER]), is_old=st.booleans())
    def release_what_is_expected(self, data: st.DataObject, steps: int, is_old: bool) -> None:
        """The end of a call whose state goes on; perhaps of one that was expected before, at another place."""
        running = data.draw(st.sampled_from(self.running))
        table = running.table
        tokens = table.token_ids[: table.num_computed_tokens if table.is_tail_written else table.num_committed_tokens]
        expectation = Expectation(steps)
        if is_old and self.expectations:
            expectation = self.expectations.pop(data.draw(st.integers(0, len(self.expectations) - 1)))[0]
        self.running.remove(running)
        self.oracle.note_retention(running, is_committed=False)
        self.cache.release(table, expectation=expectation)
        self.expectations.append((expectation, running.namespace, tokens))

    @precondition(lambda self: self.expectations)
    @rule(data=st.data(), steps=st.none() | st.sampled_from([0, 1, 3, UNKNOWN, NEVER]), is_over=st.booleans())
    def expect_otherwise(self, data: st.DataObject, steps: int | None, is_over: bool) -> None:
        """Sooner, later, or not at all."""
        idx = data.draw(st.integers(0, len(self.expectations) - 1))
        if steps is None:
            end = self.cache.expectations.retire if is_over else self.cache.expectations.drop
            end(self.expectations.pop(idx)[0])
        else:
            self.cache.expectations.change(self.expectations[idx][0], steps)

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
        self.oracle.carry_out_copies()
        for running, end in plan:
            self.oracle.write(running, end)
        for running, end in plan:
            self.oracle.read_all(running, end)
        for running, end in plan:
            if end == len(running.table.token_ids):
                running.table.token_ids += data.draw(st.lists(st.integers(0, 2), max_size=2))
            self.commit(running, end)
            self.remember(running.table.token_ids)

    def extend(self, table: BlockTable, num_tokens: int) -> bool:
        before = self.picture()
        fits = -(-num_tokens // BLOCK_SIZE) - len(table.block_ids) <= self.oracle.num_unused_blocks(())
        if self.cache.extend(table, num_tokens):
            assert fits
            assert len(table.block_ids) * BLOCK_SIZE >= num_tokens
            return True
        assert self.took_failure() or (not fits and self.picture() == before)
        return False

    def commit(self, running: Running, end: int) -> None:
        table = running.table
        before, notes = list(table.block_ids), dict(self.pool.notes)
        self.oracle.note_retention(running, is_committed=False)
        self.cache.commit(table, end)
        for old, new in zip(before, table.block_ids, strict=True):
            if old != new:
                assert self.pool.state(old) == BlockState.FREE
                assert (old, new) in self.pool.moves or old not in notes
        self.oracle.read_all(running, end)

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
        num_unused = self.oracle.num_unused_blocks(())
        assert self.cache.num_free_blocks + self.cache.reset() == num_unused == self.cache.num_free_blocks
        assert self.cache.num_evictable_blocks == 0

    @rule(num_blocks=st.integers(1, 6))
    def evict(self, num_blocks: int) -> None:
        """A sequence that needs some blocks more than are free, and leaves nothing behind."""
        num_blocks = self.cache.num_free_blocks + min(num_blocks, self.cache.num_evictable_blocks)
        match = self.cache.match([0], namespace="pressure")
        acquired = self.cache.acquire([0], match, num_blocks * BLOCK_SIZE, namespace="pressure")
        assert acquired is not None or self.took_failure()
        if acquired is not None:
            assert self.cache.num_free_blocks == 0
            self.cache.release(acquired[0])

    @rule()
    def fail_an_allocation(self) -> None:
        self.pool.num_allocations_to_fail = 1

    # ---- after every rule ------------------------------------------------------------------------------------------

    def check_moves(self) -> None:
        """Notes are about tokens, so both blocks must hold the same. Before somebody else writes into the free one."""
        for src_block_id, dst_block_id in self.pool.moves:
            src, dst = self.oracle.contents[src_block_id], self.oracle.contents[dst_block_id]
            assert src
            assert all(src[slot] == dst[slot] for slot in src.keys() & dst.keys())
        self.pool.moves.clear()

    def picture(self) -> tuple[Any, ...]:
        return render(self.cache), self.cache.stats, self.pool.free_ids()

    def took_failure(self) -> bool:
        """An allocation was made to fail since the last time this was asked."""
        has_failed, self.pool.has_failed = self.pool.has_failed, False
        return has_failed

    @invariant()
    def holds(self) -> None:
        self.cache.check_invariants()
        self.check_moves()
        for block_id in range(self.cache.num_blocks):
            assert self.cache.annotation(block_id) is self.pool.notes.get(block_id)
        assert self.cache.num_available_blocks == self.oracle.num_unused_blocks(())
        for running in self.running:
            table = running.table
            self.oracle.read_all(
                running, table.num_computed_tokens if table.is_tail_written else table.num_committed_tokens
            )
        if not self.cache.enable_sharing and not self.running:
            assert self.cache.num_free_blocks == self.cache.num_blocks

    @invariant()
    def retentions_are_the_highest_asked_for(self) -> None:
        self.oracle.check_retention()

    @invariant()
    def expectations_are_on_their_prefix(self) -> None:
        for expectation, namespace, tokens in self.expectations:
            self.oracle.check_expectation(expectation, namespace, tokens)

    @invariant()
    def watches_are_current(self) -> None:
        """The recount by a fresh walk is among the invariants of the cache; here is what the blocks say."""
        self.oracle.check_watches(self.watches)


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
