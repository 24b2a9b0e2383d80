"""Which block goes first, policy by policy, and what the queue of candidates costs."""

from __future__ import annotations

import pytest

from ramet.radix import EVICTION_POLICIES, CacheUsageError, PrefixCache
from ramet.radix.eviction import EvictionQueue, Usage, eviction_key, make_eviction_policy


def run(start: int, length: int) -> list[int]:
    return list(range(start, start + length))


def use(cache: PrefixCache, tokens: list[int], priority: int = 0) -> None:
    """Compute `tokens` and release them; what was cached counts as a hit."""
    match = cache.match(tokens, max_tokens=len(tokens) - 1)
    table, _ = cache.acquire(tokens, match, len(tokens), priority=priority) or pytest.fail("no room")
    cache.commit(table, len(tokens))
    cache.release(table)


def evict(cache: PrefixCache, num_blocks: int) -> None:
    """Take `num_blocks` blocks from the tree by a sequence that leaves nothing behind."""
    num_tokens = 16 * (cache.num_free_blocks + num_blocks)
    table, _ = cache.acquire([1], cache.match([1], namespace="pressure"), num_tokens, namespace="pressure") or (
        pytest.fail("no room")
    )
    cache.release(table)
    cache.check_invariants()


def cached(cache: PrefixCache, *texts: list[int]) -> list[int]:
    return [cache.match(text).num_tokens for text in texts]


A, B, C = run(1000, 32), run(2000, 32), run(3000, 32)


@pytest.mark.parametrize(
    ("policy", "victims"),
    [
        ("lru", [A, C, B]),
        ("fifo", [A, B, C]),
        ("lfu", [B, C, A]),
        ("slru", [B, A, C]),
        ("priority", [C, A, B]),
    ],
)
def test_order_of_eviction(policy: str, victims: list[list[int]]) -> None:
    cache = PrefixCache(8, eviction_policy=policy)
    for text, priority in ((A, 1), (B, 2), (C, 0)):
        use(cache, text, priority)
    for text in (A, A, A, C, C, B):
        table, _ = cache.acquire(text, cache.match(text), 32) or pytest.fail("no room")
        cache.release(table)
    for num_evicted in range(1, 4):
        evict(cache, 2)
        assert [cached(cache, text) for text in victims] == [[0]] * num_evicted + [[32]] * (3 - num_evicted)


def test_a_run_is_trimmed_from_its_end() -> None:
    cache = PrefixCache(10)
    use(cache, run(0, 160))
    for num_left in (9, 7, 4, 1):
        evict(cache, 10 - num_left - cache.num_free_blocks)
        assert cached(cache, run(0, 160)) == [16 * num_left]
        assert cache.num_tree_blocks == num_left
    evict(cache, 1)
    assert cache.tree.roots == {}


def test_leaves_go_before_what_they_continue() -> None:
    cache = PrefixCache(16)
    use(cache, run(0, 64))
    use(cache, [*run(0, 32), *run(500, 32)])
    use(cache, run(0, 64))
    evict(cache, 2)
    assert cached(cache, run(0, 64), [*run(0, 32), *run(500, 32)]) == [64, 32]
    evict(cache, 2)
    assert cached(cache, run(0, 64)) == [32]
    evict(cache, 2)
    assert cache.num_tree_blocks == 0


def test_a_partial_leaf_is_evictable_while_its_node_is_in_use() -> None:
    cache = PrefixCache(4)
    use(cache, run(0, 20))
    tokens = [*run(0, 16), 99]
    table, _ = cache.acquire(tokens, cache.match(tokens), 17) or pytest.fail("no room")
    assert cache.num_evictable_blocks == 1
    assert cache.extend(table, 48)
    assert cache.num_evictable_blocks == 1
    assert cache.extend(table, 64)
    assert (cache.num_evictable_blocks, cache.num_available_blocks) == (0, 0)
    assert not cache.extend(table, 65)
    cache.check_invariants()


def test_a_source_of_a_copy_is_evicted_last() -> None:
    cache = PrefixCache(5)
    use(cache, run(0, 20))
    use(cache, run(500, 40))
    tokens = [*run(0, 20), *run(900, 20)]
    table, copies = cache.acquire(tokens, cache.match(tokens), 48) or pytest.fail("no room")
    assert copies[0].num_tokens == 4
    assert copies[0].src_block_id not in table.block_ids
    assert cached(cache, run(0, 20), run(500, 40)) == [20, 16]


def test_a_copy_may_have_its_source_evicted_by_the_same_call() -> None:
    """Three blocks: one shared, one partial to copy from, one free; the new table needs all three."""
    cache = PrefixCache(3)
    use(cache, run(0, 20))
    tokens = [*run(0, 20), *run(900, 28)]
    match = cache.match(tokens)
    assert match.num_tail_tokens == 4
    table, copies = cache.acquire(tokens, match, 48) or pytest.fail("no room")
    assert sorted(table.block_ids) == [0, 1, 2]
    assert copies[0].src_block_id == match.tail_block_id
    assert copies[0].dst_block_id == table.block_ids[1]
    assert table.num_computed_tokens == 20
    cache.check_invariants()


def test_unknown_policy_lists_the_known() -> None:
    with pytest.raises(CacheUsageError, match="lru, lfu, slru, fifo, priority, steps-to-execution"):
        PrefixCache(4, eviction_policy="mru")
    assert [make_eviction_policy(name).name for name in EVICTION_POLICIES] == list(EVICTION_POLICIES)


class Piece:
    def __init__(self, last_access: int) -> None:
        self.usage = Usage(created=0, last_access=last_access)
        self.is_evictable = True


def test_queue_follows_keys_that_grow_after_the_push() -> None:
    queue: EvictionQueue[Piece] = EvictionQueue(make_eviction_policy("lru"), max_pieces=8)
    pieces = [Piece(tick) for tick in range(5)]
    for piece in pieces:
        queue.push(piece)
        queue.push(piece)
    assert len(queue) == 5
    pieces[0].usage.touch(9, priority=0, is_hit=True)
    pieces[1].is_evictable = False
    assert queue.pop() is pieces[2]
    pieces[1].is_evictable = True
    queue.push(pieces[1])
    assert [queue.pop() for _ in range(5)] == [pieces[1], pieces[3], pieces[4], pieces[0], None]


def test_an_access_corrects_the_smallest_entry() -> None:
    """A pop after many accesses finds the keys right, as far as no piece that was not used stands before them."""
    policy = make_eviction_policy("lru")
    queue: EvictionQueue[Piece] = EvictionQueue(policy, max_pieces=8)
    pieces = [Piece(tick) for tick in range(6)]
    for piece in pieces:
        queue.push(piece)
    for tick, piece in enumerate(pieces, start=10):
        piece.usage.touch(tick, priority=0, is_hit=True)
        queue.push(piece)
        assert len(queue) == 6
    assert all(key == eviction_key(policy, piece.usage) for key, piece in queue.entries())
    assert [queue.pop() for _ in range(7)] == [*pieces, None]


@pytest.mark.parametrize("policy", sorted(EVICTION_POLICIES))
def test_queue_puts_retention_before_the_policy(policy: str) -> None:
    queue: EvictionQueue[Piece] = EvictionQueue(make_eviction_policy(policy), max_pieces=8)
    kept, plain, low = Piece(0), Piece(1), Piece(9)
    low.usage = Usage(created=9, last_access=9, num_hits=9, priority=9, retention=34)
    for piece in (kept, plain, low):
        queue.push(piece)
    kept.usage.retain(36)
    kept.usage.retain(20)
    assert [queue.pop() for _ in range(4)] == [low, plain, kept, None]


def test_queue_forgets_dropped_pieces() -> None:
    queue: EvictionQueue[Piece] = EvictionQueue(make_eviction_policy("lru"), max_pieces=8)
    alive = [Piece(tick) for tick in range(8)]
    for piece in alive:
        queue.push(piece)
    for tick in range(1000):
        dropped = Piece(tick)
        queue.push(dropped)
        dropped.is_evictable = False
    assert len(queue) <= 2 * 8 + 64
    assert [queue.pop() for _ in range(9)] == [*alive, None]


def test_a_long_chat_leaves_no_trail_in_the_queue() -> None:
    cache = PrefixCache(200)
    tokens = run(0, 5)
    for turn in range(2000):
        match = cache.match(tokens, max_tokens=len(tokens) - 1)
        table, _ = cache.acquire(tokens, match, len(tokens)) or pytest.fail("no room")
        cache.commit(table, len(tokens))
        cache.release(table)
        tokens = [*tokens, turn] if len(tokens) < 3000 else tokens[:5]
    assert len(list(cache.tree.queued())) <= 2 * 200 + 64
    cache.check_invariants()
