"""The part of a cache that is hit most: the right runs, in order, and never more than was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.radix import PrefixCache
from ramet.radix.hot_runs import hot_runs
from ramet.radix.snapshot import take_snapshot

TEXTS = st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 2), min_size=1, max_size=14)), max_size=20)


def filled(texts: list[tuple[str, list[int]]]) -> PrefixCache:
    """A cache in which these were run, each in its namespace; the last one still runs."""
    cache = PrefixCache(num_blocks=200, block_size=4)
    table = None
    for namespace, token_ids in texts:
        if table is not None:
            cache.release(table)
        match = cache.match(token_ids, namespace=namespace, max_tokens=len(token_ids) - 1)
        acquired = cache.acquire(token_ids, match, num_tokens=len(token_ids), namespace=namespace)
        assert acquired is not None
        table, _ = acquired
        cache.commit(table, len(token_ids))
    return cache


@given(TEXTS)
def test_with_room_for_all_it_is_the_snapshot(texts: list[tuple[str, list[int]]]) -> None:
    cache = filled(texts)
    hot, snapshot = hot_runs(cache, 1000, 1000), take_snapshot(cache)
    assert hot.num_hidden == 0
    assert all(run.num_hidden == 0 and run.num_tokens == len(run.token_ids) for run in hot.runs)
    assert [
        (run.parent_idx, run.namespace, run.start, run.token_ids, run.num_hits, run.last_access, run.num_running)
        for run in hot.runs
    ] == [
        (run.parent_idx, run.namespace, run.start, run.token_ids, run.num_hits, run.last_access, run.num_running)
        for run in snapshot.runs
    ]
    assert [run.is_partial for run in hot.runs] == [run.is_partial for run in snapshot.runs]


@given(TEXTS, st.integers(1, 6), st.integers(0, 3))
def test_a_cut_keeps_the_most_hit_and_what_they_continue(
    texts: list[tuple[str, list[int]]], max_num_runs: int, max_num_tokens: int
) -> None:
    cache = filled(texts)
    every, some = hot_runs(cache, 1000, 1000), hot_runs(cache, max_num_runs, max_num_tokens)
    assert len(some.runs) == min(max_num_runs, len(every.runs))
    assert all(run.parent_idx is None or run.parent_idx < idx for idx, run in enumerate(some.runs))
    assert all(len(run.token_ids) == min(run.num_tokens, max_num_tokens) for run in some.runs)
    hits = sorted((run.num_hits for run in every.runs), reverse=True)
    assert sorted((run.num_hits for run in some.runs), reverse=True) == hits[: len(some.runs)]


@pytest.mark.parametrize("num_texts", [1, 50])
def test_what_is_not_shown_is_counted(num_texts: int) -> None:
    cache = filled([("a", [1, 1, 1, 1, idx, 0, 0, 0]) for idx in range(num_texts)])
    (only,) = hot_runs(cache, 1, 2).runs
    assert only.num_hits == num_texts - 1
    assert only.token_ids == (1, 1)
    assert only.num_hidden == (0 if num_texts == 1 else num_texts)
    assert hot_runs(cache, 0, 2).num_hidden == 1
