"""PrefixCache call by call, in blocks of 16, with exact figures."""

from __future__ import annotations

import doctest

import pytest

import ramet.radix
from ramet.radix import BlockCopy, BlockTable, CacheUsageError, PrefixCache
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


def test_the_package_example() -> None:
    results = doctest.testmod(ramet.radix)
    assert results.attempted > 10
    assert results.failed == 0


def test_all_names_are_there() -> None:
    assert sorted(ramet.radix.__all__, key=str.lower) == sorted(set(ramet.radix.__all__), key=str.lower)
    assert all(hasattr(ramet.radix, name) for name in ramet.radix.__all__)


# ---- match ---------------------------------------------------------------------------------------------------------


def test_empty_cache_matches_nothing() -> None:
    cache = PrefixCache(8)
    match = cache.match(run(0, 40))
    assert (match.num_tokens, match.block_ids, match.tail_block_id, match.num_pending_tokens) == (0, (), None, 0)
    assert cache.tree.roots == {}


@pytest.mark.parametrize("shared", range(70))
def test_match_is_exact_at_every_offset(shared: int) -> None:
    """A finished text of 64 + 5 tokens; another that parts from it after `shared` tokens."""
    cache = PrefixCache(16)
    old = run(0, 69)
    finish(cache, old)
    new = old[:shared] + run(1000, 40)
    match = cache.match(new)
    assert match.num_tokens == min(shared, 69)
    assert len(match.block_ids) == match.num_tokens // 16
    assert match.num_tail_tokens == match.num_tokens % 16
    table, copies = open_table(cache, new)
    assert table.num_computed_tokens == match.num_tokens
    assert [copy.num_tokens for copy in copies] == ([shared % 16] if shared % 16 else [])
    assert all(copy.dst_block_id == table.block_ids[len(match.block_ids)] for copy in copies)
    cache.check_invariants()


@pytest.mark.parametrize("cap", [0, 1, 15, 16, 17, 31, 32, 33, 47])
def test_max_tokens_caps_the_match(cap: int) -> None:
    cache = PrefixCache(8)
    finish(cache, run(0, 48))
    match = cache.match(run(0, 48), max_tokens=cap)
    assert (match.num_tokens, len(match.block_ids), match.num_tail_tokens) == (cap, cap // 16, cap % 16)


def test_match_takes_any_sequence_of_tokens() -> None:
    cache = PrefixCache(8)
    finish(cache, run(0, 40))
    assert cache.match(tuple(run(0, 40))).num_tokens == 40
    assert cache.match(range(40)).num_tokens == 40


def test_match_changes_nothing_and_splits_nothing() -> None:
    cache = PrefixCache(8)
    finish(cache, run(0, 64))
    before = render(cache)
    assert cache.match([*run(0, 40), 7]).num_tokens == 40
    assert render(cache) == before
    assert cache.tree.num_splits == 0


def test_the_best_of_many_partial_blocks_is_found() -> None:
    cache = PrefixCache(256)
    for length in range(1, 16):
        finish(cache, [*run(0, 16), *run(100, length), 1000 + length, *run(5000, 20)])
        finish(cache, [*run(0, 16), *run(100, length), 50 - length])
    for length in range(1, 16):
        assert cache.match([*run(0, 16), *run(100, length), 999]).num_tokens == 16 + length


# ---- splitting and growing -----------------------------------------------------------------------------------------


def test_acquire_splits_on_the_block_boundary() -> None:
    cache = PrefixCache(16)
    finish(cache, run(0, 64))
    table = compute(cache, [*run(0, 40), *run(500, 24)])
    (root,) = cache.tree.roots.values()
    (head,) = root.children.values()
    assert (head.token_ids, head.start, head.lock_count) == (run(0, 32), 0, 1)
    assert sorted((child.token_ids, child.start, child.lock_count) for child in head.children.values()) == [
        (run(32, 32), 32, 0),
        ([*run(32, 8), *run(500, 24)], 32, 1),
    ]
    assert cache.tree.num_splits == 1
    assert table.node.parent is head


def test_a_long_generation_is_one_node() -> None:
    cache = PrefixCache(16)
    tokens = run(0, 20)
    table = compute(cache, tokens)
    for token in range(20, 100):
        tokens.append(token)
        assert cache.extend(table, len(tokens))
        cache.commit(table, len(tokens))
    assert (table.num_committed_tokens, table.num_computed_tokens, len(table.block_ids)) == (96, 100, 7)
    assert len(list(cache.tree.nodes())) == 2  # the root and one run
    cache.check_invariants()


def test_a_node_that_another_stands_on_does_not_grow() -> None:
    cache = PrefixCache(16)
    first, second = run(0, 33), [*run(0, 32), 900]
    table, other = compute(cache, first), compute(cache, second)
    assert table.node is other.node
    first += run(33, 20)
    assert cache.extend(table, len(first))
    cache.commit(table, len(first))
    assert table.node.parent is other.node
    assert other.node.end == 32
    cache.check_invariants()


def test_blocks_can_be_shared_while_their_sequence_runs() -> None:
    cache = PrefixCache(16)
    table = compute(cache, run(0, 50))
    other, copies = open_table(cache, [*run(0, 49), 7, 8])
    assert other.block_ids[:3] == table.block_ids[:3]
    assert copies == [BlockCopy(table.block_ids[3], other.block_ids[3], 1)]
    assert (cache.num_private_blocks, cache.num_tree_blocks) == (2, 3)


# ---- commit --------------------------------------------------------------------------------------------------------


def test_a_block_computed_twice_is_kept_once() -> None:
    cache = PrefixCache(16)
    tokens, same = run(0, 40), run(0, 40)
    nothing = cache.match([])
    table, _ = cache.acquire(tokens, nothing, 40) or pytest.fail("no room")
    other, _ = cache.acquire(same, nothing, 40) or pytest.fail("no room")
    cache.annotate(other.block_ids[0], "from the duplicate")
    cache.annotate(other.block_ids[1], "dropped")
    cache.annotate(table.block_ids[1], "kept")
    held = other.block_ids
    cache.commit(table, 40)
    cache.commit(other, 40)
    assert other.block_ids is held, "the list is changed in place"
    assert other.block_ids[:2] == table.block_ids[:2]
    assert other.block_ids[2] != table.block_ids[2]
    assert cache.num_free_blocks == 12
    assert cache.annotation(table.block_ids[0]) == "from the duplicate"
    assert cache.annotation(table.block_ids[1]) == "kept"
    assert (cache.stats.num_inserted_blocks, cache.stats.num_deduplicated_blocks) == (2, 2)
    cache.check_invariants()


def test_a_commit_that_agrees_with_half_a_run_splits_it() -> None:
    cache = PrefixCache(16)
    nothing = cache.match([])
    tokens, other_tokens = run(0, 64), [*run(0, 32), *run(500, 32)]
    table, _ = cache.acquire(tokens, nothing, 64) or pytest.fail("no room")
    other, _ = cache.acquire(other_tokens, nothing, 64) or pytest.fail("no room")
    cache.commit(table, 64)
    cache.commit(other, 64)
    assert other.block_ids[:2] == table.block_ids[:2]
    assert cache.num_tree_blocks == 6
    assert table.node.parent is other.node.parent
    cache.check_invariants()


def test_commit_refuses_what_cannot_be() -> None:
    cache = PrefixCache(16)
    table = compute(cache, run(0, 20))
    for wrong in (19, 21, 40):
        with pytest.raises(CacheUsageError, match=f"num_computed_tokens={wrong}"):
            cache.commit(table, wrong)


# ---- release and the partial leaf ----------------------------------------------------------------------------------


def test_the_next_turn_of_a_chat_computes_its_own_tokens_only() -> None:
    cache = PrefixCache(32)
    tokens = run(0, 21)
    for turn in range(6):
        table, copies = open_table(cache, tokens)
        assert table.num_computed_tokens == (0 if turn == 0 else len(tokens) - 13)
        assert len(copies) <= 1
        cache.commit(table, len(tokens))
        cache.release(table)
        tokens = [*tokens, *run(1000 * turn, 13)]
    cache.check_invariants()
    # A tail that has grown into a full block, or a longer tail, is not kept a second time.
    assert cache.num_tree_blocks == -(-(21 + 5 * 13) // 16)


def test_a_longer_partial_leaf_replaces_a_shorter_one() -> None:
    cache = PrefixCache(8)
    finish(cache, run(0, 18))
    finish(cache, run(0, 20))
    assert cache.num_tree_blocks == 2
    finish(cache, run(0, 19))
    assert cache.num_tree_blocks == 2
    assert cache.match(run(0, 30)).num_tokens == 20
    finish(cache, run(0, 32))
    assert cache.num_tree_blocks == 2


def test_released_blocks_beyond_the_computed_tokens_are_freed() -> None:
    cache = PrefixCache(8)
    table, _ = open_table(cache, run(0, 100))
    cache.commit(table, 18)
    cache.release(table)
    assert (cache.num_free_blocks, cache.num_tree_blocks, cache.num_evictable_blocks) == (6, 2, 2)
    with pytest.raises(CacheUsageError, match="released"):
        cache.release(table)
    with pytest.raises(CacheUsageError, match="released"):
        cache.extend(table, 1)


def test_a_copy_that_was_not_carried_out_is_not_kept() -> None:
    cache = PrefixCache(8)
    finish(cache, run(0, 20))
    table, copies = open_table(cache, run(0, 25))
    assert copies[0].num_tokens == 4
    assert not table.is_tail_written
    assert cache.num_free_blocks == 5
    cache.reset()  # the source of the copy is gone, and the copy itself not there yet
    assert cache.match(run(0, 25)).num_tokens == 16
    assert cache.match(run(0, 25)).num_pending_tokens == 9
    forked, fork_copies = cache.fork(table, run(0, 25)) or pytest.fail("no room")
    assert (forked.num_computed_tokens, fork_copies) == (16, [])
    cache.release(forked)
    cache.release(table)
    assert (cache.num_free_blocks, cache.num_tree_blocks) == (7, 1)
    cache.check_invariants()


def test_notes_of_a_partial_block_outlive_the_duplicate() -> None:
    """A note about tokens that the tree has already, or is to cover, goes over to the block that stays."""
    cache = PrefixCache(8, 4)
    plain, _ = cache.acquire([1, 2, 3, 4, 5, 6], cache.match([1, 2, 3, 4, 5, 6]), 6) or pytest.fail("no room")
    noted, _ = cache.acquire([1, 2, 3, 4, 5, 6], cache.match([]), 6) or pytest.fail("no room")
    longer, _ = cache.acquire([1, 2, 3, 4, 5, 6, 7], cache.match([]), 7) or pytest.fail("no room")
    for table in (plain, noted, longer):
        cache.commit(table, len(table.token_ids))
    cache.release(plain)
    cache.annotate(noted.block_ids[1], "note")
    cache.release(noted)
    tail_block_id = cache.match([1, 2, 3, 4, 5, 6]).tail_block_id
    assert tail_block_id is not None
    assert cache.annotation(tail_block_id) == "note"
    cache.release(longer)
    covering = cache.match([1, 2, 3, 4, 5, 6, 7]).tail_block_id
    assert covering is not None
    assert cache.annotation(covering) == "note"
    cache.check_invariants()
