"""Every invariant is broken once, on purpose: the checks must see it, and say what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ramet.radix import BlockTable, InvariantViolation, PrefixCache
from ramet.radix.debug import render


def small_cache() -> tuple[PrefixCache, BlockTable]:
    """Blocks of 4: a shared run [0..7], a partial leaf behind it, a run that is locked, a table with a tail."""
    cache = PrefixCache(16, block_size=4)
    for tokens in ([*range(8), 50, 51], [*range(8), *range(20, 28)], [*range(8), *range(30, 38), 60]):
        acquired = cache.acquire(tokens, cache.match(tokens), len(tokens) + 3)
        assert acquired is not None
        cache.commit(acquired[0], len(tokens))
        if tokens[-1] != 60:
            cache.release(acquired[0])
    cache.check_invariants()
    return cache, acquired[0]


def steal_a_block(cache: PrefixCache, table: BlockTable) -> None:
    table.block_ids[-1] = cache.pool.free_ids()[0]


def leak_a_block(cache: PrefixCache, table: BlockTable) -> None:
    cache.pool.allocate(1)


def write_a_tree_block(cache: PrefixCache, table: BlockTable) -> None:
    table.num_committed_tokens -= 4


def lose_a_lock(cache: PrefixCache, table: BlockTable) -> None:
    table.node.lock_count -= 1


def miscount_locked_blocks(cache: PrefixCache, table: BlockTable) -> None:
    cache.tree.num_locked_blocks += 1


def lose_a_token(cache: PrefixCache, table: BlockTable) -> None:
    table.node.token_ids.pop()


def change_a_token(cache: PrefixCache, table: BlockTable) -> None:
    table.node.token_ids[-1] = 999


def change_the_sequence(cache: PrefixCache, table: BlockTable) -> None:
    table.token_ids[5] = 999


def compute_beyond_the_blocks(cache: PrefixCache, table: BlockTable) -> None:
    table.num_computed_tokens += 1


def file_a_child_wrongly(cache: PrefixCache, table: BlockTable) -> None:
    parent = table.node.parent
    assert parent is not None
    parent.children[(9, 9, 9, 9)] = parent.children.pop(tuple(table.node.token_ids[:4]))


def forget_the_order(cache: PrefixCache, table: BlockTable) -> None:
    parent = table.node.parent
    assert parent is not None
    parent.sorted_keys.reverse()


def keep_a_redundant_leaf(cache: PrefixCache, table: BlockTable) -> None:
    parent = table.node.parent
    assert parent is not None
    (block_id,) = cache.pool.allocate(1) or pytest.fail("no room")
    cache.pool.adopt([block_id])
    cache.tree.add_leaf(parent, (20, 21), block_id, 0)


def keep_an_empty_root(cache: PrefixCache, table: BlockTable) -> None:
    cache.tree.root("nobody")


def forget_a_candidate(cache: PrefixCache, table: BlockTable) -> None:
    cache.tree._queue.pop()


def take_a_key_back(cache: PrefixCache, table: BlockTable) -> None:
    for _, piece in cache.tree.queued():
        piece.usage.last_access = -1


def annotate_a_free_block(cache: PrefixCache, table: BlockTable) -> None:
    cache.pool._annotations[cache.pool.free_ids()[0]] = "note"


def lose_a_table(cache: PrefixCache, table: BlockTable) -> None:
    cache.open_tables.remove(table)


def move_a_table(cache: PrefixCache, table: BlockTable) -> None:
    table.node = next(iter(cache.tree.nodes()))


def release_without_telling(cache: PrefixCache, table: BlockTable) -> None:
    table.is_released = True


def forget_a_watch(cache: PrefixCache, table: BlockTable) -> None:
    cache.watch(list(range(8))).group.num_tokens = 4


def wait_for_the_wrong_block(cache: PrefixCache, table: BlockTable) -> None:
    cache.watch(list(range(12))).group.next_key = (9, 9, 9, 9)


def file_a_watch_wrongly(cache: PrefixCache, table: BlockTable) -> None:
    cache.watch(list(range(12))).is_watching = False


def regroup_a_watch(cache: PrefixCache, table: BlockTable) -> None:
    cache.watch(list(range(80, 92))).group = cache.watch(list(range(12))).group


def trust_a_group_too_far(cache: PrefixCache, table: BlockTable) -> None:
    one, other = cache.watch([*range(80, 88), 1]), cache.watch([*range(80, 88), 2])
    one.group.members[other] = 9


def trust_a_group_too_little(cache: PrefixCache, table: BlockTable) -> None:
    cache.watch(list(range(80, 88))).group.num_common_tokens = 99


def lower_a_retention(cache: PrefixCache, table: BlockTable) -> None:
    for _, piece in cache.tree.queued():
        piece.usage.retention = 0


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        (steal_a_block, "is held 2 times, must be once"),
        (leak_a_block, "is held 0 times, must be once"),
        (write_a_tree_block, "is TREE, must be PRIVATE"),
        (lose_a_lock, "is locked 0 times, must be 1"),
        (miscount_locked_blocks, "num_locked_blocks is 5, must be 4"),
        (lose_a_token, "has 7 tokens in 2 blocks"),
        (change_a_token, "stands on the path of other tokens"),
        (change_the_sequence, "stands on the path of other tokens"),
        (compute_beyond_the_blocks, "has 18 computed tokens"),
        (file_a_child_wrongly, "is filed wrongly under"),
        (forget_the_order, "the order of the continuations"),
        (keep_a_redundant_leaf, "begins another continuation"),
        (keep_an_empty_root, "a root is an empty root"),
        (forget_a_candidate, "has the key None in the eviction queue"),
        (take_a_key_back, "in the eviction queue"),
        (annotate_a_free_block, "is free, but has an annotation"),
        (lose_a_table, "is locked 1 times, must be 0"),
        (move_a_table, "is not filed under its node"),
        (forget_a_watch, "watch of 8 tokens has 4 of them on node 0..8"),
        (wait_for_the_wrong_block, "waits for another block than its next"),
        (file_a_watch_wrongly, "is not in the group it is filed in"),
        (regroup_a_watch, "is not in the group it is filed in"),
        (trust_a_group_too_far, "has a member that parts before its 9 common tokens"),
        (trust_a_group_too_little, "has a member with 8 common tokens"),
        (lower_a_retention, "in the eviction queue"),
        (release_without_telling, "was released, but is still open"),
    ],
)
def test_a_broken_cache_is_noticed(break_it: Callable[[PrefixCache, BlockTable], None], complaint: str) -> None:
    cache, table = small_cache()
    break_it(cache, table)
    with pytest.raises(InvariantViolation) as caught:
        cache.check_invariants()
    assert any(complaint in violation for violation in caught.value.violations), caught.value.violations
    assert str(caught.value) == "; ".join(caught.value.violations)


def test_the_picture_of_a_cache() -> None:
    cache, _ = small_cache()
    assert render(cache).splitlines() == [
        "16 blocks of 4: 8 free, 7 in the tree (3 evictable), 1 private",
        "namespace None",
        "  [0 1 2 3 4 5 +2]  blocks 0-1  x1",
        "    ~ [50 51]  block 2",
        "    [20 21 22 23 24 25 +2]  blocks 3-4",
        "    [30 31 32 33 34 35 +2]  blocks 5-6  x1",
        "      > 17 of 17 tokens computed, own blocks 7",
    ]
