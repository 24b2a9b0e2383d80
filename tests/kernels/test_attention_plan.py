"""The plan of a step covers every context exactly once and shares only what is computed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.kernels.attention_plan import build_attention_metadata, plan_attention_items
from ramet.kernels.interface import AttentionItem, AttentionMetadata

BLOCK_SIZE = 16


def plan(tables: list[list[int]], computed: list[int], min_shared_blocks: int = 1) -> list[AttentionItem]:
    """Items where each context just fills its table."""
    return plan_attention_items(tables, computed, [len(t) * BLOCK_SIZE for t in tables], BLOCK_SIZE, min_shared_blocks)


def shared(items: list[AttentionItem]) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    return [(item.sequences, item.block_ids, item.start) for item in items if item.is_shared]


def private(items: list[AttentionItem]) -> list[tuple[int, ...]]:
    return [item.block_ids for item in items if not item.is_shared]


def test_levels_of_a_tree_are_shared_by_those_below() -> None:
    tables = [[7, 3, 1], [7, 3, 6, 2, 11], [7, 3, 6, 2, 12]]
    items = plan(tables, [2, 4, 4])
    assert shared(items) == [((0, 1, 2), (7, 3), 0), ((1, 2), (6, 2), 32)]
    assert private(items) == [(1,), (11,), (12,)]


def test_a_block_is_shared_only_where_it_lies_before_the_first_row() -> None:
    tables = [[7, 3, 5], [7, 3, 5], [7, 3, 5]]
    items = plan(tables, [2, 1, 0])
    assert shared(items) == [((0, 1), (7,), 0)]
    assert private(items) == [(3, 5), (3, 5), (7, 3, 5)]


def test_a_run_too_short_for_all_counts_towards_the_run_of_some() -> None:
    tables = [[1, 9], [1, 2, 3, 4, 8], [1, 2, 3, 4, 7]]
    items = plan(tables, [1, 4, 4], min_shared_blocks=4)
    assert shared(items) == [((1, 2), (1, 2, 3, 4), 0)]
    assert private(items) == [(1, 9), (8,), (7,)]


def test_same_tail_behind_different_blocks_is_found_only_as_a_prefix() -> None:
    items = plan([[1, 5, 6], [2, 5, 6]], [3, 3])
    assert shared(items) == []


def test_thousands_of_levels_need_no_recursion() -> None:
    chain = list(range(2000))
    tables = [[*chain[: depth + 1], 10_000 + depth] for depth in range(0, 2000, 2)]
    items = plan(tables, [len(table) - 1 for table in tables])
    assert len(items) == 2 * len(tables) - 1


def test_slots_and_trimmed_tables() -> None:
    metadata = build_attention_metadata([[5, 2, 99], [4]], [0, 3, 4], [18, 1], BLOCK_SIZE)
    assert metadata.slots.tolist() == [5 * 16 + 15, 2 * 16, 2 * 16 + 1, 4 * 16]
    assert metadata.block_tables == [[5, 2], [4]]
    assert [(item.start, item.num_tokens) for item in metadata.items] == [(0, 18), (0, 1)]


@pytest.mark.parametrize("context_len", [15, 16, 17, 32])
def test_slots_of_a_whole_prefill(context_len: int) -> None:
    metadata = build_attention_metadata([[3, 0]], [0, context_len], [context_len], BLOCK_SIZE)
    assert metadata.slots.tolist() == [*range(48, 64), *range(16)][:context_len]


@st.composite
def steps(draw: st.DrawFn) -> tuple[AttentionMetadata, int]:
    """Tables that are paths of a random tree, block ids shuffled; and the shortest run to share."""
    ids: dict[tuple[int, ...], int] = {}
    order = draw(st.permutations(range(120)))
    tables: list[list[int]] = []
    context_lens: list[int] = []
    query_starts = [0]
    for seq_idx in range(draw(st.integers(1, 6))):
        branches = draw(st.lists(st.sampled_from([0, 0, 0, 1]), min_size=0, max_size=8))
        path: tuple[int, ...] = ()
        table = []
        for branch in branches:
            path += (branch,)
            table.append(order[ids.setdefault(path, len(ids))])
        table.append(order[ids.setdefault((*path, 100 + seq_idx), len(ids))])
        tables.append(table)
        context_lens.append(draw(st.integers((len(table) - 1) * BLOCK_SIZE + 1, len(table) * BLOCK_SIZE)))
        query_starts.append(query_starts[-1] + draw(st.integers(1, context_lens[-1])))
    min_shared_blocks = draw(st.integers(1, 4))
    metadata = build_attention_metadata(
        tables, query_starts, context_lens, BLOCK_SIZE, min_shared_blocks=min_shared_blocks
    )
    return metadata, min_shared_blocks


def first_row_position(metadata: AttentionMetadata, seq_idx: int) -> int:
    num_rows = metadata.query_starts[seq_idx + 1] - metadata.query_starts[seq_idx]
    return metadata.context_lens[seq_idx] - num_rows


@given(steps())
def test_items_cover_each_context_once_and_share_only_computed_blocks(step: tuple[AttentionMetadata, int]) -> None:
    metadata, min_shared_blocks = step
    covered: list[list[int]] = [[] for _ in metadata.block_tables]
    for item in metadata.items:
        end = item.start + item.num_tokens
        assert item.start % BLOCK_SIZE == 0
        assert len(item.block_ids) == -(-item.num_tokens // BLOCK_SIZE)
        for seq_idx in item.sequences:
            covered[seq_idx].extend(range(item.start, end))
            first_block = item.start // BLOCK_SIZE
            table = metadata.block_tables[seq_idx]
            assert tuple(table[first_block : first_block + len(item.block_ids)]) == item.block_ids
            if item.is_shared:
                assert end <= first_row_position(metadata, seq_idx)
        if item.is_shared:
            assert len(item.block_ids) >= min_shared_blocks
            assert item.num_tokens % BLOCK_SIZE == 0
        else:
            assert end == metadata.context_lens[item.sequences[0]]
    for seq_idx, positions in enumerate(covered):
        assert sorted(positions) == list(range(metadata.context_lens[seq_idx]))


@given(steps())
def test_with_runs_of_one_block_nothing_computed_by_two_is_private(step: tuple[AttentionMetadata, int]) -> None:
    metadata, _ = step
    again = build_attention_metadata(
        metadata.block_tables, metadata.query_starts, metadata.context_lens, BLOCK_SIZE, min_shared_blocks=1
    )
    holders: dict[int, int] = {}
    for item in again.items:
        if not item.is_shared:
            (seq_idx,) = item.sequences
            num_computed = max(0, first_row_position(again, seq_idx) - item.start) // BLOCK_SIZE
            for block_id in item.block_ids[:num_computed]:
                assert block_id not in holders
                holders[block_id] = seq_idx
