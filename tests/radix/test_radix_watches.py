"""A watch is where a new walk would end, whatever the tree does under it; in blocks of 4."""

from __future__ import annotations

import pytest

from ramet.radix import BlockTable, CacheUsageError, PrefixCache


def compute(cache: PrefixCache, tokens: list[int], **options: object) -> BlockTable:
    namespace = options.get("namespace")
    match = cache.match(tokens, namespace=namespace, max_tokens=len(tokens) - 1)
    table, _ = cache.acquire(tokens, match, len(tokens), namespace=namespace) or pytest.fail("no room")
    cache.commit(table, len(tokens))
    return table


def finish(cache: PrefixCache, tokens: list[int], **options: object) -> None:
    cache.release(compute(cache, tokens, **options))
    cache.check_invariants()


def evict(cache: PrefixCache, num_blocks: int) -> None:
    cache.pool.free(cache.tree.evict(num_blocks))
    cache.check_invariants()


def run(start: int, length: int) -> list[int]:
    return list(range(start, start + length))


def test_a_watch_starts_with_what_is_cached() -> None:
    cache = PrefixCache(32, 4)
    finish(cache, run(0, 18))
    whole, capped, other = (cache.watch(run(0, 18), max_tokens=limit) for limit in (None, 15, 3))
    assert [watch.num_tokens for watch in (whole, capped, other)] == [16, 12, 0]
    assert [watch.next_key for watch in (whole, capped, other)] == [(), (), ()]
    parting = cache.watch([*run(0, 9), *run(90, 9)])
    assert (parting.num_tokens, parting.next_key) == (8, (8, 90, 91, 92))
    assert parting.node is whole.node is next(iter(cache.tree.roots[None].children.values()))
    assert (parting.block_ids(), whole.block_ids()) == ([0, 1], [0, 1, 2, 3])


def test_a_new_child_and_a_growing_run_take_the_watches_along() -> None:
    cache = PrefixCache(32, 4)
    near, far, elsewhere = cache.watch(run(0, 11)), cache.watch(run(0, 30)), cache.watch(run(50, 11))
    tokens = run(0, 30)
    table, _ = cache.acquire(tokens, cache.match(tokens, max_tokens=0), 30) or pytest.fail("no room")
    seen = []
    for num_computed in (3, 4, 6, 12, 29, 30):
        cache.commit(table, num_computed)
        cache.check_invariants()
        seen.append((near.num_tokens, far.num_tokens))
    assert seen == [(0, 0), (4, 4), (4, 4), (8, 12), (8, 28), (8, 28)]
    assert near.node is far.node is table.node
    assert elsewhere.num_tokens == 0


def test_a_split_takes_those_in_the_head() -> None:
    cache = PrefixCache(32, 4)
    finish(cache, run(0, 16))
    inside, boundary, end = (cache.watch([*run(0, length), *run(70, 8)]) for length in (4, 8, 16))
    tail = end.node
    finish(cache, [*run(0, 8), *run(80, 4)])
    assert [watch.num_tokens for watch in (inside, boundary, end)] == [4, 8, 16]
    assert inside.node is boundary.node is tail.parent
    assert end.node is tail
    finish(cache, boundary.token_ids)
    assert [watch.num_tokens for watch in (inside, boundary, end)] == [4, 16, 16]


def test_like_blocks_in_other_places_are_not_mistaken() -> None:
    """Two watches wait in one run for the same tokens, at different depths."""
    cache = PrefixCache(32, 4)
    finish(cache, run(0, 8))
    first, second = cache.watch([*run(0, 4), *run(60, 4)]), cache.watch([*run(0, 8), *run(60, 4)])
    assert first.node is second.node
    assert first.next_key == second.next_key
    assert first.place != second.place
    finish(cache, second.token_ids)
    assert (first.num_tokens, second.num_tokens) == (4, 12)


def test_eviction_sends_watches_back_and_computing_again_brings_them_forth() -> None:
    cache = PrefixCache(32, 4)
    finish(cache, run(0, 8))
    finish(cache, [*run(0, 8), *run(20, 8)])
    watch, inside = cache.watch([*run(0, 8), *run(20, 9)]), cache.watch([*run(0, 4), *run(30, 4)])
    seen = []
    for _ in range(4):
        evict(cache, 1)
        seen.append((watch.num_tokens, watch.next_key[:1], inside.num_tokens))
    assert seen == [(12, (24,), 4), (8, (20,), 4), (4, (4,), 4), (0, (0,), 0)]
    finish(cache, watch.token_ids)
    assert (watch.num_tokens, inside.num_tokens) == (16, 4)
    cache.reset()
    cache.check_invariants()
    assert (watch.num_tokens, inside.num_tokens) == (0, 0)


def test_a_watched_root_is_kept_until_the_last_watch_ends() -> None:
    cache = PrefixCache(32, 4)
    first, second = cache.watch(run(0, 8), namespace="a"), cache.watch(run(0, 8), namespace="a")
    assert first.place == second.place
    assert first.place != cache.watch(run(0, 8), namespace="b").place
    finish(cache, run(0, 8))
    assert first.num_tokens == 0
    finish(cache, run(0, 8), namespace="a")
    assert first.num_tokens == second.num_tokens == 8
    cache.reset()
    cache.unwatch(first)
    assert list(cache.tree.roots) == ["a", "b"]
    finish(cache, run(0, 4), namespace="a")
    assert (first.num_tokens, second.num_tokens) == (0, 4)
    cache.unwatch(second)
    cache.reset()
    assert list(cache.tree.roots) == ["b"]
    cache.check_invariants()


def test_a_block_that_is_computed_twice_moves_nothing() -> None:
    cache = PrefixCache(32, 4)
    one, two = run(0, 12), run(0, 12)
    tables = [cache.acquire(tokens, cache.match(tokens), 12) or pytest.fail("no room") for tokens in (one, two)]
    watch = cache.watch(run(0, 8))
    cache.commit(tables[0][0], 8)
    key, node = watch.next_key, watch.node
    cache.commit(tables[1][0], 12)
    cache.check_invariants()
    assert (watch.num_tokens, cache.stats.num_deduplicated_blocks) == (8, 2)
    assert (watch.next_key, watch.node) == (key, node)


def test_only_the_watches_that_wait_for_a_block_are_touched() -> None:
    cache = PrefixCache(64, 4)
    finish(cache, run(0, 8))
    watches = [cache.watch([*run(0, 8), *run(100 * index, 8)]) for index in range(1, 200)]
    keys = [watch.next_key for watch in watches]
    finish(cache, watches[17].token_ids)
    moved = [index for index, watch in enumerate(watches) if watch.next_key is not keys[index]]
    assert moved == [17]
    assert watches[17].num_tokens == 16


def test_places() -> None:
    cache = PrefixCache(32, 4)
    tokens = run(0, 14)
    table = compute(cache, tokens)
    waiting, same = (cache.watch([*run(0, 12), *run(40, 4), last]) for last in (1, 2))
    assert waiting.place == same.place == (table.node, table.num_committed_tokens, (40, 41, 42, 43))
    complete, also = cache.watch(run(0, 12)), cache.watch(run(0, 12))
    assert complete.place != also.place


def test_without_sharing_a_watch_sees_nothing() -> None:
    cache = PrefixCache(32, 4, enable_sharing=False)
    watch = cache.watch(run(0, 8))
    table = compute(cache, run(0, 8))
    assert (watch.num_tokens, watch.next_key, watch.block_ids()) == (0, (), [])
    assert cache.match(watch.token_ids, watch=watch).num_tokens == 0
    cache.release(table)
    cache.check_invariants()
    cache.unwatch(watch)
    assert cache.tree.roots == {}


def test_a_match_may_start_from_a_watch() -> None:
    cache = PrefixCache(32, 4)
    finish(cache, run(0, 8))
    finish(cache, [*run(0, 8), *run(20, 7)])
    for tokens in ([*run(0, 8), *run(20, 7)], [*run(0, 6), 1, 2, 3], run(5, 9), []):
        watch = cache.watch(tokens, max_tokens=len(tokens) // 2 * 2)
        match = cache.match(tokens, max_tokens=len(tokens) // 2 * 2, watch=watch)
        assert match == cache.match(tokens, max_tokens=len(tokens) // 2 * 2)
        assert match.version == cache.match(tokens).version
        cache.unwatch(watch)


def test_misuse_is_refused() -> None:
    cache = PrefixCache(32, 4)
    tokens = run(0, 8)
    watch = cache.watch(tokens, max_tokens=7)
    with pytest.raises(CacheUsageError, match="the watch is of 7 tokens in namespace=None, the match is to be of 8"):
        cache.match(tokens, watch=watch)
    with pytest.raises(CacheUsageError, match="namespace='x'"):
        cache.match(tokens, namespace="x", max_tokens=7, watch=watch)
    with pytest.raises(CacheUsageError, match="the very list"):
        cache.match(list(tokens), max_tokens=7, watch=watch)
    with pytest.raises(CacheUsageError, match="max_tokens=-1"):
        cache.watch(tokens, max_tokens=-1)
    cache.unwatch(watch)
    for use in (lambda: cache.unwatch(watch), lambda: cache.match(tokens, max_tokens=7, watch=watch)):
        with pytest.raises(CacheUsageError, match="the watch has ended"):
            use()


def test_those_who_wait_for_the_same_block_move_as_one() -> None:
    """However many they are, none of them is looked at: their lists may be gone."""
    cache = PrefixCache(64, 4)
    prefix = run(0, 40)
    watches = [cache.watch([*prefix, *run(100 * idx, 6)]) for idx in range(1, 9)]
    group = watches[0].group
    assert all(watch.group is group for watch in watches)
    kept = [watch.token_ids.copy() for watch in watches]
    for watch in watches[1:]:
        watch.token_ids.clear()
    table, _ = cache.acquire(prefix, cache.match(prefix, max_tokens=0), 40) or pytest.fail("no room")
    for num_computed in (4, 12, 36):
        cache.commit(table, num_computed)
        assert {(watch.num_tokens, watch.next_key) for watch in watches} == {
            (num_computed, tuple(run(num_computed, 4)))
        }
        assert all(watch.group is group for watch in watches)
    for watch, tokens in zip(watches, kept, strict=True):
        watch.token_ids += tokens if not watch.token_ids else []
    cache.commit(table, 40)
    cache.check_invariants()
    assert {watch.num_tokens for watch in watches} == {40}
    assert len({watch.group for watch in watches}) == len(watches)
    cache.release(table)
    evict(cache, 3)
    assert {watch.num_tokens for watch in watches} == {28}
    assert len({watch.group for watch in watches}) == 1


def test_only_those_who_part_leave_their_group() -> None:
    cache = PrefixCache(64, 4)
    tokens = run(0, 30)
    watches = [cache.watch([*run(0, length), *run(70, 9)]) for length in (30, 5, 9, 13, 14, 30)]
    group = watches[0].group
    table, _ = cache.acquire(tokens, cache.match(tokens, max_tokens=0), 30) or pytest.fail("no room")
    sizes = []
    for num_computed in (4, 8, 12, 16, 28):
        cache.commit(table, num_computed)
        cache.check_invariants()
        sizes.append(len(group.members))
    assert sizes == [5, 4, 2, 2, 2]
    assert [watch.num_tokens for watch in watches] == [28, 4, 8, 12, 12, 28]


def test_a_group_goes_on_without_the_one_it_was_made_for() -> None:
    cache = PrefixCache(64, 4)
    first, second, third = (cache.watch([*run(0, 12), idx, *run(50, 7)]) for idx in range(3))
    cache.unwatch(first)
    first.token_ids[:] = run(90, 20)
    finish(cache, run(0, 8))
    assert (first.num_tokens, second.num_tokens, third.num_tokens) == (0, 8, 8)
    assert second.group is third.group
    finish(cache, second.token_ids)
    assert (second.num_tokens, third.num_tokens) == (20, 12)


def test_a_watch_that_comes_by_a_move_is_compared_a_part_at_a_time() -> None:
    """Two that part early from the one that was first, and much later from each other."""
    cache = PrefixCache(64, 4)
    cache.tree.watches.lookahead = 8
    stem = [*run(0, 4), *run(200, 60)]
    cache.watch(run(0, 64))
    watches = [cache.watch([*stem, *run(300 * idx, 8)]) for idx in (1, 2)]
    table, _ = cache.acquire(stem, cache.match(stem, max_tokens=0), 64) or pytest.fail("no room")
    known = []
    for num_computed in range(4, 64, 4):
        cache.commit(table, num_computed)
        cache.check_invariants()
        assert watches[0].group is watches[1].group
        known.append(watches[0].group.num_common_tokens)
    assert known == [16, 16, 16, 24, 24, 32, 32, 40, 40, 48, 48, 56, 56, 64, 64]
