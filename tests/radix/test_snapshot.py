"""The cache as plain data: what is in the trees, what it continues, and how often it was hit."""

from __future__ import annotations

from ramet.radix import BlockTable, PrefixCache
from ramet.radix.snapshot import take_snapshot


def run_sequence(cache: PrefixCache, token_ids: list[int]) -> BlockTable:
    match = cache.match(token_ids)
    acquired = cache.acquire(token_ids, match, num_tokens=len(token_ids))
    assert acquired is not None
    table, _ = acquired
    cache.commit(table, len(token_ids))
    return table


def test_a_snapshot_tells_the_trees() -> None:
    cache = PrefixCache(num_blocks=8, block_size=4)
    cache.release(run_sequence(cache, [1, 2, 3, 4, 5, 6]))
    table = run_sequence(cache, [1, 2, 3, 4, 7, 7, 7, 7, 8])
    snapshot = take_snapshot(cache)
    assert [(run.parent_idx, run.start, run.token_ids) for run in snapshot.runs] == [
        (None, 0, (1, 2, 3, 4)),
        (0, 4, (7, 7, 7, 7)),
        (0, 4, (5, 6)),
    ]
    assert [(run.num_hits, run.num_running, run.is_partial) for run in snapshot.runs] == [
        (1, 1, False),
        (0, 1, False),
        (0, 0, True),
    ]
    assert snapshot.runs[1].last_access > snapshot.runs[2].last_access
    assert (snapshot.num_blocks, snapshot.num_free_blocks, snapshot.num_tree_blocks) == (8, 4, 3)
    cache.release(table)
    assert take_snapshot(cache).runs[0].num_running == 0


def test_an_empty_cache_has_no_runs() -> None:
    assert take_snapshot(PrefixCache(num_blocks=2)).runs == ()
