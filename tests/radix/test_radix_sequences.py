"""Room, work in flight, forks, namespaces: several sequences at once, in blocks of 16, with exact figures."""

from __future__ import annotations

import pytest

from ramet.radix import BlockCopy, BlockPool, BlockTable, CacheUsageError, PrefixCache
from ramet.radix.debug import render


def open_table(cache: PrefixCache, tokens: list[int], **options: object) -> tuple[BlockTable, list[BlockCopy]]:
    """Match all but the last token and acquire room for all."""
    namespace = options.get("namespace")
    match = cache.match(tokens, namespace=namespace, max_tokens=len(tokens) - 1)
    acquired = cache.acquire(tokens, match, len(tokens), namespace=namespace)
    assert acquired is not None
    return acquired


def compute(cache: PrefixCache, tokens: list[int], **options: object) -> BlockTable:
    table, _ = open_table(cache, tokens, **options)
    cache.commit(table, len(tokens))
    return table


def finish(cache: PrefixCache, tokens: list[int], **options: object) -> None:
    cache.release(compute(cache, tokens, **options))
    cache.check_invariants()


def run(start: int, length: int) -> list[int]:
    return list(range(start, start + length))


# ---- room ----------------------------------------------------------------------------------------------------------


def test_acquire_without_room_changes_nothing() -> None:
    cache = PrefixCache(4)
    finish(cache, run(0, 48))
    before = render(cache), cache.stats, cache.tree.num_splits
    # 2 of 3 evictable blocks are matched and would be locked: 1 free + 1 evictable are left, 3 are wanted.
    tokens = [*run(0, 32), *run(500, 48)]
    assert cache.acquire(tokens, cache.match(tokens), 80) is None
    assert (render(cache), cache.stats, cache.tree.num_splits) == before
    table, _ = cache.acquire(tokens, cache.match(tokens), 64) or pytest.fail("no room")
    assert len(table.block_ids) == 4
    assert cache.num_available_blocks == 0
    assert cache.stats.num_evicted_blocks == 1
    assert not cache.extend(table, 65)
    cache.check_invariants()


def test_num_locked_blocks_of_a_match() -> None:
    cache = PrefixCache(16)
    finish(cache, run(0, 64))
    assert cache.num_locked_blocks(cache.match(run(0, 50))) == 0
    compute(cache, [*run(0, 32), 900])
    match = cache.match(run(0, 50))
    assert (len(match.block_ids), cache.num_locked_blocks(match)) == (3, 2)


def test_a_stale_match_is_matched_again() -> None:
    cache = PrefixCache(4)
    finish(cache, run(0, 48))
    tokens = [*run(0, 40), 900]
    match = cache.match(tokens)
    assert match.num_tokens == 40
    other, _ = cache.acquire(run(100, 20), cache.match([]), 32) or pytest.fail("no room")  # evicts the third block
    assert cache.stats.num_evicted_blocks == 1
    cache.release(other)
    table, copies = cache.acquire(tokens, match, 41) or pytest.fail("no room")
    assert (table.num_computed_tokens, copies) == (32, [])
    cache.check_invariants()


def test_a_match_outlives_a_split_and_a_growing_run() -> None:
    cache = PrefixCache(16)
    growing = run(0, 64)
    table = compute(cache, growing)
    match = cache.match(run(0, 64))
    compute(cache, [*run(0, 32), *run(500, 20)])  # splits the node of the match
    growing += run(64, 16)
    assert cache.extend(table, 80)
    cache.commit(table, 80)  # and grows it
    other, _ = cache.acquire(run(0, 64), match, 64) or pytest.fail("no room")
    assert other.block_ids == table.block_ids[:4]
    assert other.node.end == 64
    cache.check_invariants()


def test_acquire_refuses_what_cannot_be() -> None:
    cache = PrefixCache(16)
    finish(cache, run(0, 64))
    match = cache.match(run(0, 64))
    with pytest.raises(CacheUsageError, match="num_tokens=63"):
        cache.acquire(run(0, 64), match, 63)
    with pytest.raises(CacheUsageError, match="for 10 tokens"):
        cache.acquire(run(0, 10), match, 64)
    with pytest.raises(CacheUsageError, match="namespace='other'"):
        cache.acquire(run(0, 64), match, 64, namespace="other")
    with pytest.raises(CacheUsageError, match="max_tokens=-1"):
        cache.match(run(0, 64), max_tokens=-1)


# ---- in flight -----------------------------------------------------------------------------------------------------


def test_what_a_running_sequence_is_about_to_compute_is_pending() -> None:
    cache = PrefixCache(64)
    prefix = run(0, 100)
    first, _ = open_table(cache, [*prefix, 1000])
    tokens = [*prefix, 2000, 2001]
    match = cache.match(tokens)
    assert (match.num_tokens, match.num_pending_tokens) == (0, 100)
    assert match.pending_table is first
    assert cache.match(tokens, max_tokens=90).num_pending_tokens == 90
    cache.commit(first, 20)
    match = cache.match(tokens)
    assert (match.num_tokens, match.num_tail_tokens, match.num_pending_tokens) == (20, 4, 80)
    cache.commit(first, 101)
    match = cache.match(tokens)
    assert (match.num_tokens, match.num_pending_tokens, match.pending_table) == (100, 0, None)


def test_the_longest_of_many_pending_is_found() -> None:
    cache = PrefixCache(4096)
    finish(cache, run(0, 32))
    tables = [open_table(cache, [*run(0, 32 + length), 5000 + length])[0] for length in range(256)]
    for length in (0, 1, 17, 100, 255):
        match = cache.match([*run(0, 32 + length), 9999])
        assert match.num_tokens + match.num_pending_tokens == 32 + length
        assert match.pending_table is (tables[length] if length else None)
    match = cache.match(run(0, 400))
    assert (match.num_pending_tokens, match.pending_table) == (255, tables[255])


def test_a_sequence_without_a_next_token_is_found_once_it_has_one() -> None:
    cache = PrefixCache(16)
    tokens = run(0, 32)
    table = compute(cache, tokens)
    tokens.append(32)  # the owner appends without telling
    assert cache.match(run(0, 40)).num_pending_tokens == 1
    assert cache.extend(table, 33)
    cache.commit(table, 33)
    assert cache.match(run(0, 40)).num_tokens == 33
    assert cache.match([*run(0, 32), 7]).num_tokens == 32
    group = cache.open_tables._groups[table.node]
    assert (list(group.by_token), list(group.aside)) == ([32], [])


# ---- fork ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(16))
def test_fork_of_eight_copies_one_block_each_at_most(offset: int) -> None:
    cache = PrefixCache(64)
    tokens = run(0, 32 + offset)
    parent = compute(cache, tokens) if offset else compute(cache, run(0, 32))
    children = []
    for child in range(8):
        table, copies = cache.fork(parent, [*tokens, 900 + child]) or pytest.fail("no room")
        expected = [BlockCopy(parent.block_ids[2], table.block_ids[2], offset)] if offset else []
        assert copies == expected
        assert table.num_computed_tokens == len(tokens)
        assert table.block_ids[:2] == parent.block_ids[:2]
        children.append(table)
    assert parent.node.lock_count == 9
    assert cache.num_private_blocks == (9 if offset else 0)
    for table in children:
        cache.release(table)
    cache.release(parent)
    cache.check_invariants()


def test_fork_refuses_other_tokens_and_a_shared_list() -> None:
    cache = PrefixCache(16)
    tokens = run(0, 20)
    table = compute(cache, tokens)
    for wrong in (tokens, run(1, 20), run(0, 19)):
        with pytest.raises(CacheUsageError, match="cannot be forked"):
            cache.fork(table, wrong)


def test_fork_without_room_changes_nothing() -> None:
    cache = PrefixCache(2)
    table = compute(cache, run(0, 20))
    before = render(cache), cache.stats
    assert cache.fork(table, run(0, 20)) is None
    assert (render(cache), cache.stats) == before
    cache.check_invariants()


# ---- namespaces, annotations, reset, sharing off -------------------------------------------------------------------


def test_namespaces_do_not_see_each_other() -> None:
    cache = PrefixCache(16)
    finish(cache, run(0, 40), namespace="a")
    assert cache.match(run(0, 40)).num_tokens == 0
    assert cache.match(run(0, 40), namespace="b").num_tokens == 0
    assert cache.match(run(0, 40), namespace="a").num_tokens == 40
    finish(cache, run(0, 40), namespace=("model", 2))
    assert cache.num_tree_blocks == 6
    assert set(cache.tree.roots) == {"a", ("model", 2)}
    assert cache.reset() == 6
    assert cache.tree.roots == {}


def test_annotations_live_as_long_as_their_block() -> None:
    cache = PrefixCache(2)
    table = compute(cache, run(0, 16))
    (block_id,) = table.block_ids
    cache.annotate(block_id, [1.0])
    cache.annotate(block_id, [2.0])
    cache.release(table)
    assert cache.annotation(block_id) == [2.0]
    assert cache.match(run(0, 16)).block_ids == (block_id,)
    finish(cache, run(100, 32))
    assert cache.annotation(block_id) is None
    cache.reset()
    for wrong in (block_id, -1, 2):
        with pytest.raises(CacheUsageError, match=f"block_id={wrong}"):
            cache.annotate(wrong, "x")


def test_reset_spares_what_runs() -> None:
    cache = PrefixCache(16)
    finish(cache, run(500, 70))
    tokens = [*run(0, 32), 1, 2]
    table = compute(cache, tokens)
    assert cache.reset() == 5
    assert cache.match(tokens).num_tokens == 34
    cache.release(table)
    assert cache.reset() == 3
    assert (cache.num_free_blocks, cache.num_tree_blocks) == (16, 0)
    cache.check_invariants()


def test_without_sharing_nothing_is_found_and_nothing_stays() -> None:
    cache = PrefixCache(16, enable_sharing=False)
    tokens = run(0, 40)
    table = compute(cache, tokens)
    other = compute(cache, run(0, 40))
    assert not set(table.block_ids) & set(other.block_ids)
    assert (cache.match(tokens).num_tokens, cache.match(tokens).num_pending_tokens) == (0, 0)
    child, copies = cache.fork(table, [*tokens, 7]) or pytest.fail("no room")
    assert child.block_ids[:2] == table.block_ids[:2]
    assert len(copies) == 1
    cache.release(table)
    cache.check_invariants()
    assert cache.num_free_blocks == 10
    cache.release(child)
    cache.release(other)
    assert cache.num_free_blocks == 16
    assert cache.tree.roots == {}


def test_stats_count_tokens_and_blocks() -> None:
    cache = PrefixCache(16)
    finish(cache, run(0, 40))
    before = cache.stats
    finish(cache, [*run(0, 36), *run(500, 4)])
    stats = cache.stats
    assert (before.num_queried_tokens, before.num_hit_tokens) == (40, 0)
    assert (stats.num_queried_tokens, stats.num_hit_tokens) == (80, 36)
    assert (stats.num_copied_blocks, stats.num_inserted_blocks, stats.num_evicted_blocks) == (1, 2, 0)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(CacheUsageError, match="num_blocks=0"):
        PrefixCache(0)
    with pytest.raises(CacheUsageError, match="block_size=0"):
        PrefixCache(4, block_size=0)
    with pytest.raises(CacheUsageError, match="num_blocks=4"):
        PrefixCache(4, pool=BlockPool(5))


def test_block_size_one_has_no_partial_blocks() -> None:
    cache = PrefixCache(64, block_size=1)
    finish(cache, run(0, 21))
    match = cache.match([*run(0, 17), 99])
    assert (match.num_tokens, len(match.block_ids), match.tail_block_id) == (17, 17, None)
