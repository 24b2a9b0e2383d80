"""The calls of the torch attention: who sees what, exactly once; how much is fetched; how large masks get."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ramet.kernels.attention_plan import build_attention_metadata
from ramet.kernels.interface import AttentionMetadata
from ramet.kernels.torch_cpu.attention_units import MAX_FETCHED_TOKENS, MAX_MASKED_ROWS, AttentionUnit, build_units

BLOCK_SIZE = 16
CPU = torch.device("cpu")


def indices(index: slice | Tensor) -> list[int]:
    return list(range(index.start, index.stop)) if isinstance(index, slice) else index.tolist()


def visibility(unit: AttentionUnit, group_size: int) -> dict[int, list[int]]:
    """Slots that each row of a unit counts, read off its indices and its mask."""
    rows, slots = indices(unit.rows), indices(unit.keys)
    rows_a_part, keys_a_part = len(rows) // unit.num_parts, len(slots) // unit.num_parts
    seen: dict[int, list[int]] = {}
    for idx, row in enumerate(rows):
        part, offset = divmod(idx, rows_a_part)
        own = slots[part * keys_a_part : (part + 1) * keys_a_part]
        if unit.is_causal:
            own = own[: idx + 1]
        elif unit.mask is not None:
            repeats = 1 if unit.is_per_head else group_size
            mask_rows = unit.mask[part, 0, offset * repeats : (offset + 1) * repeats].tolist()
            assert mask_rows == mask_rows[:1] * repeats
            own = [slot for slot, bias in zip(own, mask_rows[0], strict=True) if bias == 0]
        assert seen.setdefault(row, own) == own
    return seen


def check_each_row_sees_its_context_once(metadata: AttentionMetadata, window: int | None) -> None:
    group_size = 2
    units = build_units(metadata, group_size, window, CPU)
    num_rows = metadata.query_starts[-1]
    seen: list[list[int]] = [[] for _ in range(num_rows)]
    touched: set[int] = set()
    for unit in units:
        rows = set(indices(unit.rows))
        assert unit.is_first == touched.isdisjoint(rows)
        touched |= rows
        for row, slots in visibility(unit, group_size).items():
            seen[row].extend(slots)
    for seq_idx, table in enumerate(metadata.block_tables):
        first, end = metadata.query_starts[seq_idx], metadata.query_starts[seq_idx + 1]
        for row in range(first, end):
            position = metadata.context_lens[seq_idx] - (end - row)
            start = 0 if window is None else max(0, position - window + 1)
            expected = [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start, position + 1)]
            assert sorted(seen[row]) == sorted(expected), (row, position)


@st.composite
def steps(draw: st.DrawFn) -> AttentionMetadata:
    """One or two levels of shared runs and private tails, over a pool that is consecutive, reversed or shuffled."""
    free = list(range(200))
    order = draw(st.sampled_from(["up", "down", "shuffled"]))
    if order == "down":
        free.reverse()
    elif order == "shuffled":
        draw(st.randoms(use_true_random=False)).shuffle(free)
    free_ids = iter(free)
    root = [next(free_ids) for _ in range(draw(st.integers(0, 20)))]
    branch = [next(free_ids) for _ in range(draw(st.integers(0, 8)))]
    tables: list[list[int]] = []
    context_lens: list[int] = []
    query_starts = [0]
    for _ in range(draw(st.integers(1, 4))):
        shared = draw(st.sampled_from([[], root, root + branch]))
        own = [next(free_ids) for _ in range(draw(st.sampled_from([1, 1, 2, 3, 18])))]
        tables.append(shared + own)
        # Blocks of a shared run are computed, so rows lie in the own blocks.
        num_own = draw(st.integers(1, len(own) * BLOCK_SIZE))
        context_lens.append(len(shared) * BLOCK_SIZE + num_own)
        query_starts.append(query_starts[-1] + draw(st.one_of(st.just(1), st.integers(1, num_own))))
    return build_attention_metadata(tables, query_starts, context_lens, BLOCK_SIZE)


@settings(max_examples=60, deadline=None)
@given(steps(), st.one_of(st.none(), st.integers(1, 500)))
def test_each_row_sees_its_context_exactly_once(metadata: AttentionMetadata, window: int | None) -> None:
    check_each_row_sees_its_context_once(metadata, window)


def num_fetched(units: list[AttentionUnit]) -> int:
    return sum(len(indices(unit.keys)) for unit in units)


def test_a_shared_prefix_is_fetched_once_in_few_calls() -> None:
    prefix = list(range(64))
    tables = [[*prefix, 64 + idx] for idx in range(32)]
    metadata = build_attention_metadata(tables, list(range(33)), [1024 + 16] * 32, BLOCK_SIZE)
    units = build_units(metadata, 3, None, CPU)
    assert num_fetched(units) == 1024 + 32 * 16
    assert [unit.rows for unit in units] == [slice(0, 32), slice(0, 32)]
    assert units[0].keys == slice(0, 1024)
    assert [unit.is_first for unit in units] == [True, False]
    assert units[1].mask is None


def test_without_sharing_every_context_is_fetched() -> None:
    tables = [[idx * 65 + block for block in range(65)] for idx in range(4)]
    metadata = build_attention_metadata(tables, list(range(5)), [1040] * 4, BLOCK_SIZE)
    assert num_fetched(build_units(metadata, 3, None, CPU)) == 4 * 1040


@pytest.mark.parametrize("window", [None, 600, 90])
@pytest.mark.parametrize("context_len", [1030, 1025, 200])
def test_a_lone_decode_over_consecutive_blocks_copies_nothing(context_len: int, window: int | None) -> None:
    metadata = build_attention_metadata([list(range(100, 165))], [0, 1], [context_len], BLOCK_SIZE)
    (unit,) = build_units(metadata, 3, window, CPU)
    end = 1600 + context_len
    assert unit.keys == slice(1600 if window is None else max(1600, end - window), end)
    assert unit.mask is None


def test_a_decode_over_runs_of_blocks_copies_the_short_ones_only() -> None:
    table = [*range(100, 130), 5, *range(40, 60), 7, 8]
    metadata = build_attention_metadata([table], [0, 1], [len(table) * BLOCK_SIZE - 3], BLOCK_SIZE)
    units = build_units(metadata, 3, None, CPU)
    assert [unit.keys for unit in units[:2]] == [slice(640, 960), slice(1600, 2080)]
    assert indices(units[2].keys) == [*range(80, 96), *range(112, 141)]


def test_blocks_handed_out_backwards_are_still_one_slice() -> None:
    metadata = build_attention_metadata([list(range(63, -1, -1))], [0, 1], [1009], BLOCK_SIZE)
    assert build_units(metadata, 3, None, CPU)[0].keys == slice(16, 1024)


def test_decodes_of_very_different_length_are_not_padded_to_the_longest() -> None:
    lengths = [20, 33, 20, 3000, 41, 18]
    tables, next_id = [], 0
    for length in lengths:
        num_blocks = -(-length // BLOCK_SIZE)
        tables.append(list(range(next_id, next_id + 2 * num_blocks, 2)))
        next_id += 2 * num_blocks
    metadata = build_attention_metadata(tables, list(range(7)), lengths, BLOCK_SIZE)
    units = build_units(metadata, 3, None, CPU)
    assert len(units) == 2
    assert num_fetched(units) <= sum(lengths) + 256


def test_many_long_private_decodes_are_fetched_in_parts() -> None:
    tables = [list(range(seq_idx, 32 * 60, 32)) for seq_idx in range(32)]
    metadata = build_attention_metadata(tables, list(range(33)), [950 + idx for idx in range(10)] * 3 + [955] * 2, 16)
    units = build_units(metadata, 3, None, CPU)
    assert max(len(indices(unit.keys)) for unit in units) <= MAX_FETCHED_TOKENS
    assert all(unit.is_first for unit in units)
    assert len(units) == 8


def test_a_window_fetches_only_what_a_row_can_see() -> None:
    metadata = build_attention_metadata([list(range(0, 200, 2))], [0, 1], [1600], BLOCK_SIZE)
    assert num_fetched(build_units(metadata, 3, 100, CPU)) == 100


def test_masks_of_a_windowed_prefill_are_bounded() -> None:
    metadata = build_attention_metadata([list(range(256))], [0, 4096], [4096], BLOCK_SIZE)
    for unit in build_units(metadata, 3, 300, CPU):
        assert unit.mask is not None
        assert unit.mask.numel() <= MAX_MASKED_ROWS * (MAX_MASKED_ROWS + 300)
