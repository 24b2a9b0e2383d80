"""The planner: from the metadata of a step to flat lists of work items, for one shape of heads.

    metadata.items   runs of blocks with the sequences that have them (attention_plan.py, one per node of the tree)
       |  1. keep the shared runs that pay (shared_runs.py); hand the others down to those who share them
       |  2. cut each run's rows into tiles: as many rows as the lines of a tile hold
       |  3. cut each tile's keys into chunks, so that there are programs enough for all multiprocessors
       v
    items            (rows, keys, part) triples, the largest first; a row's parts are numbered in order of its keys

A run's block ids are written once, whoever shares it. Pure Python over lists of int; no tensors, no kernels.

Chunks. Few long contexts leave most of a GPU idle, so their keys are cut (flash-decoding). The chunk is the shortest,
found by bisection, with which there are no more programs than `num_slots`, or half of that beyond one per tile, so that
the longest are cut even where tiles are many (after FlashInfer: Ye et al. 2025, section 3.3.1). It is not shorter than
a slot's share of all keys: with shorter ones nobody would be done sooner. Nor has it fewer than 4 keys a line of its
tile: the parts would be as many bytes as the keys.

Batch invariance. With `fixed_chunk_len` a chunk ends at multiples of that many positions, shared runs are whole chunks,
and there is one size of tile. A row's parts are then a function of its position, each is computed alike whoever is in
the tile, and they are merged in order: the bits of a row do not depend on what else is in the step, how its prompt was
chunked or what was shared (docs/adr/0027).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..interface import AttentionMetadata
from .shared_runs import HeadShape, Run, SharingRules, choose_runs
from .tiles import Tile

ITEM_WIDTH = 8
"""int32 fields of an item: first row, rows, first block, keys, position of the first key, part, and two unused."""


@dataclass(frozen=True, slots=True)
class PlanRules:
    """What the plans of an engine have in common.

    Attributes:
        tiles: ascending by lines, each wide enough for a row's heads; one only with a fixed chunk.
        num_slots: programs that run at a time: multiprocessors times the programs one holds.
        min_chunk_len: shortest chunk, in keys: below it, merging costs more than it saves.
        fixed_chunk_len: keys in a chunk, whatever the batch; a multiple of the tile's keys and of the block size. None
            lets the batch decide.
        sharing: when a run is read once for all who share it.
    """

    tiles: tuple[Tile, ...]
    num_slots: int
    min_chunk_len: int = 256
    fixed_chunk_len: int | None = None
    sharing: SharingRules = field(default_factory=SharingRules)

    def __post_init__(self) -> None:
        assert self.tiles
        if self.fixed_chunk_len is not None:
            assert len(self.tiles) == 1, "one size of tile, or a row's bits would depend on its neighbours"
            assert self.fixed_chunk_len % self.tiles[0].block_n == 0


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The lists of a step, of int32.

    Attributes:
        positions: of each row in its sequence.
        row_ranges: T + 1 offsets of the rows' parts; a row with one item has none.
        rows: the rows of every tile, one after another.
        targets: for each of `rows`, its first part in the tile, or -1 if the tile's one item writes the output.
        kv_blocks: block ids of the runs, one after another.
        items: for each tile size, ITEM_WIDTH fields an item.
        num_parts: parts of all rows.
    """

    positions: array[int]
    row_ranges: array[int]
    rows: array[int]
    targets: array[int]
    kv_blocks: array[int]
    items: tuple[array[int], ...]
    num_parts: int

    def num_items(self, tile_idx: int) -> int:
        """Items of one tile size."""
        return len(self.items[tile_idx]) // ITEM_WIDTH


_MIN_KEYS_A_LINE = 4


@dataclass(slots=True)
class _PlannedTile:
    """Rows that one program works on, and their keys, before these are cut into chunks of at least min_chunk_len."""

    tile_idx: int
    first_row: int
    num_rows: int
    first_block: int
    first_position: int
    num_keys: int
    min_chunk_len: int

    def num_chunks(self, chunk_len: int) -> int:
        return -(-self.num_keys // max(chunk_len, self.min_chunk_len))


@dataclass(slots=True)
class _Tiles:
    """Steps 1 and 2: all tiles of a step with their rows and blocks."""

    rows: list[int] = field(default_factory=list)
    kv_blocks: list[int] = field(default_factory=list)
    planned: list[_PlannedTile] = field(default_factory=list)


def plan_attention(metadata: AttentionMetadata, shape: HeadShape, rules: PlanRules) -> AttentionPlan:
    """Plan a step. Mutates nothing.

    Cost: linear in the rows of all tiles and the blocks of all runs; 64 sequences of 4,096 tokens take about 1 ms.
    """
    assert rules.tiles[0].block_m >= shape.group_size
    positions = _positions(metadata)
    step = rules.fixed_chunk_len or math.lcm(rules.min_chunk_len, metadata.block_size)
    assert step % metadata.block_size == 0
    tiles = _cut_rows(metadata, shape, rules, positions, step)
    chunk_len = rules.fixed_chunk_len or _balanced_chunk_len(tiles.planned, shape.num_kv_heads, rules.num_slots, step)
    return _number_parts(tiles, chunk_len, metadata.block_size, positions, len(rules.tiles))


def _positions(metadata: AttentionMetadata) -> list[int]:
    """Of each row in its sequence."""
    positions: list[int] = []
    for seq_idx, context_len in enumerate(metadata.context_lens):
        num_rows = metadata.query_starts[seq_idx + 1] - metadata.query_starts[seq_idx]
        positions += range(context_len - num_rows, context_len)
    return positions


def _cut_rows(
    metadata: AttentionMetadata, shape: HeadShape, rules: PlanRules, positions: Sequence[int], step: int
) -> _Tiles:
    """Steps 1 and 2; chunks will be multiples of `step`."""
    tiles = _Tiles()
    max_rows = rules.tiles[-1].num_rows(shape.group_size)
    tile_idx_of = [
        next(idx for idx, tile in enumerate(rules.tiles) if tile.num_rows(shape.group_size) >= num_rows)
        for num_rows in range(max_rows + 1)
    ]
    for run in choose_runs(metadata, shape, rules.sharing, rules.tiles[-1], rules.fixed_chunk_len):
        first_block = len(tiles.kv_blocks)
        tiles.kv_blocks += run.block_ids
        rows = _rows_of(run, metadata.query_starts)
        for start in range(0, len(rows), max_rows):
            part = rows[start : start + max_rows]
            num_keys = run.num_keys if run.is_shared else positions[part[-1]] + 1 - run.first_position
            tiles.planned.append(
                _PlannedTile(
                    tile_idx=tile_idx_of[len(part)],
                    first_row=len(tiles.rows),
                    num_rows=len(part),
                    first_block=first_block,
                    first_position=run.first_position,
                    num_keys=num_keys,
                    min_chunk_len=_min_chunk_len(len(part) * shape.group_size, rules, step),
                )
            )
            tiles.rows += part
    return tiles


def _min_chunk_len(num_lines: int, rules: PlanRules, step: int) -> int:
    """With a fixed chunk, that; otherwise enough keys for the lines."""
    return step if rules.fixed_chunk_len else -(-num_lines * _MIN_KEYS_A_LINE // step) * step


def _rows_of(run: Run, query_starts: Sequence[int]) -> Sequence[int]:
    """The rows of a run's sequences, in order."""
    if not run.is_shared:
        (seq_idx,) = run.sequences
        return range(query_starts[seq_idx], query_starts[seq_idx + 1])
    rows: list[int] = []
    for seq_idx in run.sequences:
        rows += range(query_starts[seq_idx], query_starts[seq_idx + 1])
    return rows


def _balanced_chunk_len(planned: Sequence[_PlannedTile], num_kv_heads: int, num_slots: int, step: int) -> int:
    """The shortest chunk, in steps of `step`, that keeps to the number of programs."""
    slots_of_head = max(1, num_slots // num_kv_heads)
    max_items = max(slots_of_head, len(planned) + slots_of_head // 2)
    share_of_slot = sum(tile.num_keys for tile in planned) // slots_of_head
    high = -(-max(tile.num_keys for tile in planned) // step)
    low = min(high, max(1, share_of_slot // step))
    while low < high:
        middle = (low + high) // 2
        if sum(tile.num_chunks(middle * step) for tile in planned) <= max_items:
            high = middle
        else:
            low = middle + 1
    return low * step


def _number_parts(
    tiles: _Tiles, chunk_len: int, block_size: int, positions: list[int], num_tile_sizes: int
) -> AttentionPlan:
    """Step 3: cut keys into chunks and give every row of every item its place."""
    num_parts_of_row = [0] * len(positions)
    parts_before: list[int] = []
    items: list[list[tuple[int, ...]]] = [[] for _ in range(num_tile_sizes)]
    for tile in tiles.planned:
        num_chunks = tile.num_chunks(chunk_len)
        for row in tiles.rows[tile.first_row : tile.first_row + tile.num_rows]:
            parts_before.append(num_parts_of_row[row])
            num_parts_of_row[row] += num_chunks
        items[tile.tile_idx] += _chunks(tile, chunk_len, block_size)
    row_ranges = [0]
    for num_parts in num_parts_of_row:
        row_ranges.append(row_ranges[-1] + (num_parts if num_parts > 1 else 0))
    targets = [
        row_ranges[row] + before if num_parts_of_row[row] > 1 else -1
        for row, before in zip(tiles.rows, parts_before, strict=True)
    ]
    for same_size in items:
        same_size.sort(key=lambda item: item[3], reverse=True)
    return AttentionPlan(
        positions=array("i", positions),
        row_ranges=array("i", row_ranges),
        rows=array("i", tiles.rows),
        targets=array("i", targets),
        kv_blocks=array("i", tiles.kv_blocks),
        items=tuple(array("i", [value for item in same_size for value in item]) for same_size in items),
        num_parts=row_ranges[-1],
    )


def _chunks(tile: _PlannedTile, chunk_len: int, block_size: int) -> list[tuple[int, ...]]:
    """The items of a tile; a chunk begins with a block."""
    chunk_len = max(chunk_len, tile.min_chunk_len)
    return [
        (
            *(tile.first_row, tile.num_rows, tile.first_block + start // block_size),
            *(min(chunk_len, tile.num_keys - start), tile.first_position + start, part_idx),
            *(0, 0),
        )
        for part_idx, start in enumerate(range(0, tile.num_keys, chunk_len))
    ]
