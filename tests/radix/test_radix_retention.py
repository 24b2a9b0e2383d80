"""Parts of prompts that are kept for longer, or dropped first; in blocks of 4."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from ramet.radix import DEFAULT_RETENTION, EVICTION_POLICIES, BlockTable, CacheUsageError, PrefixCache, RetentionRange
from ramet.radix.retention import block_retention, retention_runs

KEEP = (RetentionRange(0, 10, 90),)


def run(start: int, length: int) -> list[int]:
    return list(range(start, start + length))


def compute(cache: PrefixCache, tokens: list[int], retention: tuple[RetentionRange, ...] = ()) -> BlockTable:
    match = cache.match(tokens, max_tokens=len(tokens) - 1)
    table, _ = cache.acquire(tokens, match, len(tokens), retention=retention) or pytest.fail("no room")
    cache.commit(table, len(tokens))
    cache.check_invariants()
    return table


def finish(cache: PrefixCache, tokens: list[int], retention: tuple[RetentionRange, ...] = ()) -> None:
    cache.release(compute(cache, tokens, retention))
    cache.check_invariants()


def flood(cache: PrefixCache, num_prompts: int) -> None:
    """Prompts that never come back, each used several times."""
    for index in range(num_prompts):
        for _ in range(4):
            finish(cache, run(1000 * (index + 1), 30))


def cached(cache: PrefixCache, tokens: list[int]) -> int:
    return cache.match(tokens).num_tokens


def retentions(cache: PrefixCache) -> list[tuple[int, int, int]]:
    """(start, end, retention) of each node and partial leaf, in the order of the tree."""
    found = []
    for node in cache.tree.nodes():
        if node.parent is not None:
            found.append((node.start, node.end, node.usage.retention))
        found += [(node.end, node.end + len(key), leaf.usage.retention) for key, leaf in node.leaves.items()]
    return found


@pytest.mark.parametrize("policy", sorted(EVICTION_POLICIES))
def test_a_retained_system_prompt_survives_a_flood(policy: str) -> None:
    for retention, num_kept in ((KEEP, 12), ((), 0)):
        cache = PrefixCache(24, 4, policy)
        finish(cache, run(0, 20), retention)
        flood(cache, 20)
        assert cached(cache, run(0, 20)) == num_kept


@pytest.mark.parametrize("policy", sorted(EVICTION_POLICIES))
def test_what_is_below_the_default_goes_first(policy: str) -> None:
    cache = PrefixCache(24, 4, policy)
    finish(cache, run(0, 16))
    for _ in range(5):
        finish(cache, run(100, 16), (RetentionRange(8, None, 34),))
    cache.pool.free(cache.tree.evict(2))
    assert (cached(cache, run(0, 16)), cached(cache, run(100, 16))) == (16, 8)


def test_a_run_is_cut_where_retention_changes_and_only_there() -> None:
    cache = PrefixCache(32, 4)
    ranges = (RetentionRange(0, 10, 90), RetentionRange(4, 7, 80), RetentionRange(21, None, 10))
    tokens = run(0, 27)
    table, _ = cache.acquire(tokens, cache.match([]), 40, retention=ranges) or pytest.fail("no room")
    for num_computed in (5, 9, 21, 27):
        cache.commit(table, num_computed)
        cache.check_invariants()
    tokens += run(27, 10)
    cache.commit(table, 37)
    cache.release(table)
    cache.check_invariants()
    assert retentions(cache) == [(0, 12, 90), (12, 20, 35), (20, 36, 10), (36, 37, 10)]


def test_without_ranges_a_run_is_one_node() -> None:
    cache = PrefixCache(32, 4)
    finish(cache, run(0, 30), ())
    finish(cache, run(500, 30), (RetentionRange(3, 20, DEFAULT_RETENTION),))
    assert retentions(cache) == [(0, 28, 35), (28, 30, 35), (0, 28, 35), (28, 30, 35)]


def test_reuse_raises_what_is_there_and_never_lowers_it() -> None:
    cache = PrefixCache(32, 4)
    finish(cache, run(0, 24))
    finish(cache, run(0, 24), (RetentionRange(5, 9, 60),))
    assert retentions(cache) == [(0, 4, 35), (4, 12, 60), (12, 20, 35), (20, 24, 35)]
    finish(cache, run(0, 24), (RetentionRange(0, None, 1),))
    finish(cache, run(0, 24))
    assert retentions(cache) == [(0, 4, 35), (4, 12, 60), (12, 20, 35), (20, 24, 35)]
    finish(cache, run(0, 12), (RetentionRange(0, None, 70),))
    assert {(start, end, kept) for start, end, kept in retentions(cache) if start < 12} == {
        (0, 4, 70),
        (4, 8, 70),
        (8, 12, 70),
    }


def test_a_sequence_without_ranges_asks_for_the_default() -> None:
    cache = PrefixCache(32, 4)
    finish(cache, run(0, 12), (RetentionRange(0, None, 5),))
    assert retentions(cache) == [(0, 12, 5)]
    finish(cache, [*run(0, 8), *run(70, 4)])
    assert retentions(cache) == [(0, 8, 35), (8, 12, 5), (8, 12, 35)]


def test_a_block_computed_twice_is_kept_as_the_keener_one_asks() -> None:
    cache = PrefixCache(32, 4)
    one, two = run(0, 8), run(0, 12)
    first, _ = cache.acquire(one, cache.match([]), 8) or pytest.fail("no room")
    second, _ = cache.acquire(two, cache.match([]), 12, retention=(RetentionRange(0, 4, 50),)) or pytest.fail("no room")
    cache.commit(first, 8)
    cache.commit(second, 12)
    cache.check_invariants()
    assert retentions(cache) == [(0, 4, 50), (4, 8, 35), (8, 12, 35)]


def test_a_partial_leaf_hands_its_retention_to_the_block_that_replaces_it() -> None:
    cache = PrefixCache(32, 4)
    finish(cache, run(0, 6), KEEP)
    assert retentions(cache) == [(0, 4, 90), (4, 6, 90)]
    finish(cache, run(0, 7))
    assert retentions(cache) == [(0, 4, 90), (4, 7, 90)]
    finish(cache, run(0, 16))
    assert retentions(cache) == [(0, 8, 90), (8, 16, 35)]


def test_a_tail_that_the_tree_has_already_raises_it() -> None:
    cache = PrefixCache(32, 4)
    finish(cache, run(0, 14))
    finish(cache, run(0, 6), KEEP)
    assert retentions(cache) == [(0, 4, 90), (4, 8, 90), (8, 12, 35), (12, 14, 35)]
    finish(cache, run(0, 14), (RetentionRange(13, 14, 40),))
    assert retentions(cache)[-1] == (12, 14, 40)


def test_a_fork_asks_for_what_its_parent_asks_for() -> None:
    cache = PrefixCache(32, 4)
    parent = compute(cache, run(0, 8), (RetentionRange(0, None, 77),))
    tokens = [*run(0, 8), *run(30, 8)]
    child, _ = cache.fork(parent, tokens) or pytest.fail("no room")
    assert cache.extend(child, 16)
    cache.commit(child, 16)
    cache.check_invariants()
    assert retentions(cache) == [(0, 8, 77), (8, 16, 77)]


def test_a_failed_acquire_raises_nothing() -> None:
    cache = PrefixCache(4, 4)
    finish(cache, run(0, 16))
    assert cache.acquire(run(0, 20), cache.match(run(0, 20)), 20, retention=KEEP) is None
    assert retentions(cache) == [(0, 16, 35)]


@pytest.mark.parametrize(
    ("start", "end", "priority", "complaint"),
    [
        (-1, None, 50, "start=-1 is not allowed"),
        (4, 4, 50, "end=4 is not allowed: it must be more than start=4"),
        (4, 3, 50, "end=3 is not allowed"),
        (0, None, 101, "priority=101 is not allowed: it must be between 0 and 100"),
        (0, None, -1, "priority=-1 is not allowed"),
        (0.5, None, 50, "start=0.5 is not allowed: it must be an integer"),
        (0, 1.5, 50, "end=1.5 is not allowed: it must be an integer"),
        (0, None, None, "priority=None is not allowed: it must be an integer"),
    ],
)
def test_bad_ranges_are_refused(start: int, end: int | None, priority: int, complaint: str) -> None:
    with pytest.raises(CacheUsageError, match=complaint):
        RetentionRange(start, end, priority)


def test_runs_agree_with_a_look_at_each_token() -> None:
    generator = random.Random(0)
    for _ in range(500):
        ranges = tuple(
            RetentionRange(
                start, generator.choice([None, start + generator.randrange(1, 20)]), generator.choice([0, 35, 50])
            )
            for start in generator.choices(range(30), k=generator.randrange(4))
        )
        first, num_blocks = generator.randrange(4), generator.randrange(1, 7)
        runs = retention_runs(ranges, first * 4, (first + num_blocks) * 4, 4)
        by_block = []
        for block in range(first, first + num_blocks):
            tokens = range(block * 4, block * 4 + 4)
            asked = [r.priority for r in ranges for t in tokens if r.start <= t < (r.end or 1000)]
            by_block.append(max(asked, default=DEFAULT_RETENTION))
            assert block_retention(ranges, block * 4, block * 4 + 4) == by_block[-1]
        spread, start = [], first * 4
        for end, retention in runs:
            spread += [retention] * ((end - start) // 4)
            start = end
        assert spread == by_block
        assert all(one[1] != other[1] for one, other in pairwise(runs))
