"""The planner: every row sees each of its keys once, shared blocks are written once, chunks fill the GPU."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.kernels.attention_plan import build_attention_metadata
from ramet.kernels.interface import AttentionMetadata
from ramet.kernels.triton.plan import ITEM_WIDTH, AttentionPlan, BlockIdMemo, PlanRules, plan_attention
from ramet.kernels.triton.plan_buffers import PlanBuffers, PlanCapacity, PlanTooLargeError, load_plan
from ramet.kernels.triton.shared_runs import HeadShape, SharingRules
from ramet.kernels.triton.tiles import Tile, fitting, tiles_for

SHAPE = HeadShape(8, 2, 64)
TILES = (Tile(16, 32, 4, 1, False), Tile(64, 32, 4, 1, True))
EAGER_SHARING = SharingRules(min_len=1, break_even=0.0)
CPU = torch.device("cpu")


def items_of(plan: AttentionPlan) -> list[tuple[int, ...]]:
    """All items, of 6 fields each, of every tile size."""
    return [tuple(fields[start : start + 6]) for fields in plan.items for start in range(0, len(fields), ITEM_WIDTH)]


def check(metadata: AttentionMetadata, plan: AttentionPlan) -> None:
    """Follow the plan as the kernels do, and compare with the block tables."""
    block_size = metadata.block_size
    seen: list[dict[int, int]] = [{} for _ in plan.positions]
    parts: Counter[int] = Counter()
    whole: Counter[int] = Counter()
    for first_row, num_rows, first_block, num_keys, first_position, part_idx in items_of(plan):
        assert num_rows > 0
        assert num_keys > 0
        for entry in range(first_row, first_row + num_rows):
            row, target = plan.rows[entry], plan.targets[entry]
            if target < 0:
                assert part_idx == 0
                whole[row] += 1
            else:
                parts[target + part_idx] += 1
                assert plan.row_ranges[row] <= target + part_idx < plan.row_ranges[row + 1]
            for key in range(num_keys):
                position = first_position + key
                if position <= plan.positions[row]:
                    assert position not in seen[row]
                    seen[row][position] = plan.kv_blocks[first_block + key // block_size]
    assert parts == Counter(range(plan.num_parts))
    for seq_idx, (first, end) in enumerate(pairwise(metadata.query_starts)):
        for row in range(first, end):
            assert plan.positions[row] == metadata.context_lens[seq_idx] - (end - row)
            table = metadata.block_tables[seq_idx]
            assert seen[row] == {position: table[position // block_size] for position in range(plan.positions[row] + 1)}
            assert whole[row] == (plan.row_ranges[row] == plan.row_ranges[row + 1])


@st.composite
def steps(draw: st.DrawFn) -> AttentionMetadata:
    """Sequences that continue one another's tables at random places."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    tables: list[list[int]] = []
    next_block = 0
    query_starts, context_lens = [0], []
    for _ in range(draw(st.integers(1, 7))):
        table: list[int] = []
        if tables and draw(st.booleans()):
            parent = draw(st.sampled_from(tables))
            table = parent[: draw(st.integers(0, len(parent)))]
        context_len = len(table) * block_size + draw(st.integers(1, 90))
        num_rows = draw(st.sampled_from([1, 1, 2, 20]))
        num_rows = min(num_rows, context_len - len(table) * block_size)
        num_blocks = -(-context_len // block_size) - len(table)
        table = table + list(range(next_block, next_block + num_blocks))
        next_block += num_blocks
        tables.append(table)
        context_lens.append(context_len)
        query_starts.append(query_starts[-1] + num_rows)
    return build_attention_metadata(tables, query_starts, context_lens, block_size, min_shared_blocks=1)


@settings(max_examples=120, deadline=None)
@given(
    steps(),
    st.sampled_from([SHAPE, HeadShape(3, 3, 32), HeadShape(16, 1, 8)]),
    st.integers(1, 40),
    st.sampled_from([SharingRules(), EAGER_SHARING, SharingRules(32, 0.5)]),
    st.sampled_from([None, 32]),
)
def test_every_row_sees_each_of_its_keys_once(
    metadata: AttentionMetadata, shape: HeadShape, num_slots: int, sharing: SharingRules, fixed_chunk_len: int | None
) -> None:
    tiles = TILES[-1:] if fixed_chunk_len else TILES
    rules = PlanRules(tiles, num_slots, 16, fixed_chunk_len, sharing)
    plan = plan_attention(metadata, shape, rules)
    check(metadata, plan)
    if fixed_chunk_len:
        check_parts_follow_from_positions(plan, fixed_chunk_len)


def check_parts_follow_from_positions(plan: AttentionPlan, chunk_len: int) -> None:
    """Part i of a row is of keys i * chunk_len .. (i + 1) * chunk_len, as far as it sees them, in any batch."""
    parts: dict[int, list[tuple[int, int, int]]] = {}
    for first_row, num_rows, _, num_keys, first_position, part_idx in items_of(plan):
        for entry in range(first_row, first_row + num_rows):
            row = plan.rows[entry]
            num_seen = min(num_keys, plan.positions[row] + 1 - first_position)
            place = 0 if plan.targets[entry] < 0 else plan.targets[entry] + part_idx - plan.row_ranges[row]
            if num_seen > 0:
                parts.setdefault(row, []).append((place, first_position, num_seen))
    for row, position in enumerate(plan.positions):
        assert sorted(parts[row]) == [
            (idx, start, min(chunk_len, position + 1 - start))
            for idx, start in enumerate(range(0, position + 1, chunk_len))
        ]


def decodes(num_shared_blocks: int, num_private_blocks: int, num_seqs: int) -> AttentionMetadata:
    """Decoding sequences with a common prefix."""
    prefix = list(range(num_shared_blocks))
    tables = [prefix + [1000 * (seq_idx + 1) + idx for idx in range(num_private_blocks)] for seq_idx in range(num_seqs)]
    lens = [16 * len(tables[0])] * num_seqs
    return build_attention_metadata(tables, range(num_seqs + 1), lens, 16, min_shared_blocks=1)


def test_a_shared_run_is_written_once() -> None:
    plan = plan_attention(decodes(64, 2, 8), SHAPE, PlanRules(TILES, 64))
    assert len(plan.kv_blocks) == 64 + 8 * 2
    assert sorted(num_rows for _, num_rows, *_ in items_of(plan)) == [1] * 8 + [8] * (len(items_of(plan)) - 8)


@pytest.mark.parametrize(
    ("num_shared_blocks", "num_seqs", "is_shared"),
    [(8, 8, False), (16, 8, True), (64, 2, True), (64, 1, False)],
    ids=["short", "long enough", "two", "alone"],
)
def test_what_pays_is_shared(num_shared_blocks: int, num_seqs: int, is_shared: bool) -> None:
    metadata = decodes(num_shared_blocks, 2, num_seqs)
    plan = plan_attention(metadata, SHAPE, PlanRules(TILES, 1))
    assert (len(plan.kv_blocks) < num_seqs * (num_shared_blocks + 2)) == is_shared
    check(metadata, plan)


def test_long_chunks_do_not_share() -> None:
    """Each reads the prefix once a tile anyway; parts for thousands of rows would cost more."""
    tables = [[*range(64), *range(1000 * (idx + 1), 1000 * (idx + 1) + 64)] for idx in range(2)]
    metadata = build_attention_metadata(tables, [0, 1024, 2048], [2048, 2048], 16, min_shared_blocks=1)
    plan = plan_attention(metadata, SHAPE, PlanRules(TILES, 1))
    assert len(plan.kv_blocks) == 2 * 128
    assert plan.num_parts == 0


def test_a_lone_context_is_cut_for_all_multiprocessors() -> None:
    plan = plan_attention(decodes(0, 1024, 1), SHAPE, PlanRules(TILES, 64))
    assert 24 <= len(items_of(plan)) <= 32
    assert plan.num_parts == len(items_of(plan))
    assert max(item[3] for item in items_of(plan)) % 256 == 0


def test_many_contexts_are_not_cut_but_for_the_longest() -> None:
    tables = [[idx] for idx in range(100)] + [list(range(200, 1200))]
    metadata = build_attention_metadata(tables, range(102), [16] * 100 + [16_000], 16)
    plan = plan_attention(metadata, SHAPE, PlanRules(TILES, 64))
    assert 100 + 8 <= len(items_of(plan)) <= 101 + 16
    check(metadata, plan)


def test_the_largest_items_come_first() -> None:
    tables = [[idx] for idx in range(5)] + [list(range(200, 240)), list(range(300, 310))]
    metadata = build_attention_metadata(tables, range(8), [16] * 5 + [640, 160], 16)
    num_keys = [item[3] for item in items_of(plan_attention(metadata, SHAPE, PlanRules(TILES, 8)))]
    assert num_keys == sorted(num_keys, reverse=True)


def test_buffers_keep_their_place_and_clear_what_is_left() -> None:
    large = plan_attention(decodes(64, 2, 8), SHAPE, PlanRules(TILES, 64))
    small = plan_attention(decodes(0, 2, 3), SHAPE, PlanRules(TILES, 64))
    buffers = PlanBuffers(PlanCapacity.of(large), SHAPE, CPU)
    buffers.load(large)
    first = [tensor.clone() for tensor in buffers.plan.items]
    buffers.load(small)
    for tile_idx, items in enumerate(buffers.plan.items):
        num_items = small.num_items(tile_idx)
        assert items[:num_items].flatten().tolist() == small.items[tile_idx].tolist()
        assert not items[num_items:].any()
    assert buffers.plan.row_ranges[3:].unique().numel() == 1
    buffers.load(large)
    assert all(torch.equal(items, before) for items, before in zip(buffers.plan.items, first, strict=True))


class FinishedCopy:
    """Stands for the event that a copy is followed by."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


def test_of_the_block_ids_only_those_of_the_plan_are_copied() -> None:
    """There is room for a whole pool; what is behind the plan's own stays as it was on the device. A GPU's memory is
    played by a tensor beside the host's."""
    large = plan_attention(decodes(8, 20, 8), SHAPE, PlanRules(TILES, 64))
    small = plan_attention(decodes(0, 2, 3), SHAPE, PlanRules(TILES, 64))
    count, room = len(small.kv_blocks), len(large.kv_blocks)
    assert count < room
    buffers = PlanBuffers(PlanCapacity.of(large), SHAPE, CPU)
    buffers._host = torch.zeros_like(buffers._device)
    buffers._copied = cast(Any, FinishedCopy())
    buffers.load(large)
    assert buffers.plan.positions.tolist() == large.positions.tolist()
    buffers.plan.kv_blocks.fill_(-7)
    buffers.load(small)
    assert buffers.plan.kv_blocks.tolist() == [*small.kv_blocks, *[-7] * (room - count)]
    buffers.load(large)
    assert buffers.plan.kv_blocks.tolist() == large.kv_blocks.tolist()


def test_a_plan_that_does_not_fit_changes_nothing() -> None:
    large = plan_attention(decodes(64, 2, 8), SHAPE, PlanRules(TILES, 64))
    small = plan_attention(decodes(0, 2, 3), SHAPE, PlanRules(TILES, 64))
    buffers = PlanBuffers(PlanCapacity.of(small), SHAPE, CPU)
    buffers.load(small)
    before = buffers.plan.kv_blocks.clone()
    with pytest.raises(PlanTooLargeError, match="the plan has 8 rows, its buffers hold 3"):
        buffers.load(large)
    assert torch.equal(buffers.plan.kv_blocks, before)


@pytest.mark.parametrize("num_seqs", [1, 3, 16, 64])
@pytest.mark.parametrize(("num_shared", "num_private"), [(0, 1), (0, 256), (256, 1), (20, 3)])
def test_the_capacity_for_decodes_holds_decodes(num_seqs: int, num_shared: int, num_private: int) -> None:
    rules = PlanRules(TILES, 264)
    plan = plan_attention(decodes(num_shared, num_private, num_seqs), SHAPE, rules)
    num_blocks = num_shared + num_seqs * num_private
    PlanBuffers(PlanCapacity.for_decodes(num_seqs, num_blocks, SHAPE, rules), SHAPE, CPU).load(plan)


def test_a_loaded_plan_is_the_plan() -> None:
    plan = plan_attention(decodes(64, 2, 8), SHAPE, PlanRules(TILES, 64))
    loaded = load_plan(plan, SHAPE, CPU)
    for name in ("positions", "row_ranges", "rows", "targets", "kv_blocks"):
        assert getattr(loaded, name).tolist() == getattr(plan, name).tolist()
    assert loaded.partial_out.shape == (plan.num_parts, 8, 64)


@pytest.mark.parametrize("group_size", [1, 3, 16, 17, 71, 128, 200])
@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("is_hip", [False, True])
def test_tiles_hold_a_row(group_size: int, head_dim: int, is_hip: bool) -> None:
    for tiles in (
        tiles_for(head_dim, 2, group_size, is_hip=is_hip),
        tiles_for(head_dim, 4, group_size, is_hip=is_hip),
        tiles_for(head_dim, 2, group_size, is_quantised=True, is_hip=is_hip),
        fitting(TILES, group_size),
    ):
        assert all(tile.num_rows(group_size) >= 1 for tile in tiles)
        assert all(small.block_m < large.block_m for small, large in pairwise(tiles))


def assert_same_plan(actual: AttentionPlan, expected: AttentionPlan) -> None:
    for name in ("positions", "row_ranges", "rows", "targets", "kv_blocks"):
        assert getattr(actual, name).tolist() == getattr(expected, name).tolist(), name
    assert [fields.tolist() for fields in actual.items] == [fields.tolist() for fields in expected.items]


@settings(max_examples=60, deadline=None)
@given(st.lists(steps(), min_size=2, max_size=4))
def test_what_is_remembered_of_other_steps_changes_no_plan(all_metadata: list[AttentionMetadata]) -> None:
    """Nor does a block table that goes on, or is another one at the same place."""
    memo = BlockIdMemo()
    rules = PlanRules(TILES, 8, 16, None, EAGER_SHARING)
    for metadata in all_metadata:
        assert_same_plan(plan_attention(metadata, SHAPE, rules, memo), plan_attention(metadata, SHAPE, rules))


def test_a_memo_forgets_runs_that_ended() -> None:
    memo = BlockIdMemo()
    for num_blocks in range(1, 60):
        plan_attention(decodes(num_blocks, 1, 3), SHAPE, PlanRules(TILES, 8, 16, None, EAGER_SHARING), memo)
    assert memo.num_known <= 4 * (3 + 1) + 4


@pytest.mark.parametrize(("num_rows", "is_launched"), [(1, [True, False]), (4, [True, False]), (5, [True, True])])
def test_a_tile_size_that_a_captured_step_never_fills_is_not_launched(num_rows: int, is_launched: list[bool]) -> None:
    """Heads of 4 a row: the tile of 16 lines holds 4 rows, so that of 64 is for 5 and more."""
    capacity = PlanCapacity.for_decodes(num_rows, 100, SHAPE, PlanRules(TILES, 264))
    assert [count > 0 for count in capacity.num_items] == is_launched
    plan = plan_attention(decodes(32, 2, num_rows), SHAPE, PlanRules(TILES, 264, sharing=EAGER_SHARING))
    PlanBuffers(capacity, SHAPE, CPU).load(plan)


def test_block_ids_come_last_in_the_buffer() -> None:
    """Only so far as there are any are they copied to a device."""
    loaded = load_plan(plan_attention(decodes(64, 2, 8), SHAPE, PlanRules(TILES, 64)), SHAPE, CPU)
    others = (loaded.positions, loaded.row_ranges, loaded.rows, loaded.targets, *loaded.items)
    assert all(tensor.data_ptr() < loaded.kv_blocks.data_ptr() for tensor in others)
