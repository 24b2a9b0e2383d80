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
from itertools import accumulate, chain
from operator import itemgetter

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


class BlockIdMemo:
    """The block ids of runs as arrays, kept from one step to the next.

    To make an array of a list costs some 20 ns an entry, and thousands of blocks are those of the last step: comparing
    them costs a tenth. Threads may share one: an entry is replaced as a whole, and is compared before it is used."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Sequence[int], array[int]]] = {}

    def array_of(self, run: Run) -> array[int]:
        """The run's block ids. The result must not be changed."""
        place = (run.sequences[0], run.first_position)
        known = self._known.get(place)
        if known is None or known[0] != run.block_ids:
            known = self._known[place] = (run.block_ids, array("i", run.block_ids))
        return known[1]

    @property
    def num_known(self) -> int:
        return len(self._known)

    def forget_all_but(self, num_sequences: int) -> None:
        """Let go of runs when there are many more than so many sequences can have."""
        if len(self._known) > _RUNS_A_SEQUENCE * (num_sequences + 1):
            self._known.clear()


_RUNS_A_SEQUENCE = 4

# Rows of one program and their keys, before these are cut into chunks: size of tile, first row, rows, first block,
# position of the first key, keys, and how many keys a chunk has at least. A plain tuple: a step makes hundreds.
_PlannedTile = tuple[int, int, int, int, int, int, int]


@dataclass(slots=True)
class _Tiles:
    """Steps 1 and 2: all tiles of a step with their rows and blocks."""

    rows: list[int] = field(default_factory=list)
    kv_blocks: array[int] = field(default_factory=lambda: array("i"))
    planned: list[_PlannedTile] = field(default_factory=list)


def plan_attention(
    metadata: AttentionMetadata, shape: HeadShape, rules: PlanRules, memo: BlockIdMemo | None = None
) -> AttentionPlan:
    """Plan a step. Mutates nothing but the memo, which makes the next plan cheaper and never another one.

    Cost: linear in the rows of all tiles and the blocks of all runs; docs/adr/0027 has times.
    """
    assert rules.tiles[0].block_m >= shape.group_size
    memo = BlockIdMemo() if memo is None else memo
    memo.forget_all_but(len(metadata.context_lens))
    step = rules.fixed_chunk_len or math.lcm(rules.min_chunk_len, metadata.block_size)
    assert step % metadata.block_size == 0
    tiles = _cut_rows(metadata, shape, rules, memo, step)
    num_slots = max(1, rules.num_slots // shape.num_kv_heads)
    chunk_len = rules.fixed_chunk_len or _balanced_chunk_len(tiles.planned, num_slots, step)
    return _number_parts(tiles, chunk_len, metadata.block_size, _positions(metadata), len(rules.tiles))


def _positions(metadata: AttentionMetadata) -> array[int]:
    """Of each row in its sequence."""
    positions = array("i")
    for seq_idx, context_len in enumerate(metadata.context_lens):
        num_rows = metadata.query_starts[seq_idx + 1] - metadata.query_starts[seq_idx]
        positions.extend(range(context_len - num_rows, context_len))
    return positions


def _cut_rows(metadata: AttentionMetadata, shape: HeadShape, rules: PlanRules, memo: BlockIdMemo, step: int) -> _Tiles:
    """Steps 1 and 2; chunks will be multiples of `step`."""
    tiles = _Tiles()
    max_rows = rules.tiles[-1].num_rows(shape.group_size)
    # By number of rows: the tile that holds them, and the shortest chunk.
    forms = [
        (
            next(idx for idx, tile in enumerate(rules.tiles) if tile.num_rows(shape.group_size) >= num_rows),
            _min_chunk_len(num_rows * shape.group_size, rules, step),
        )
        for num_rows in range(max_rows + 1)
    ]
    for run in choose_runs(metadata, shape, rules.sharing, rules.tiles[-1], rules.fixed_chunk_len):
        first_block = len(tiles.kv_blocks)
        tiles.kv_blocks += memo.array_of(run)
        rows = _rows_of(run, metadata.query_starts)
        for start in range(0, len(rows), max_rows):
            part = rows[start : start + max_rows]
            # In a private run the last row sees all keys, the one before it one less, and so on.
            num_hidden = 0 if run.is_shared else len(rows) - start - len(part)
            tile_idx, min_chunk_len = forms[len(part)]
            place = (tile_idx, len(tiles.rows), len(part), first_block, run.first_position)
            tiles.planned.append((*place, run.num_keys - num_hidden, min_chunk_len))
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


def _balanced_chunk_len(planned: Sequence[_PlannedTile], num_slots: int, step: int) -> int:
    """The shortest chunk, in steps of `step`, that keeps to the number of programs: `num_slots` a head."""
    max_items = max(num_slots, len(planned) + num_slots // 2)
    lens = [(num_keys, min_chunk_len) for *_, num_keys, min_chunk_len in planned]
    share_of_slot = sum(num_keys for num_keys, _ in lens) // num_slots
    high = -(-max(lens)[0] // step)
    low = min(high, max(1, share_of_slot // step))
    while low < high:
        middle = (low + high) // 2
        chunk_len = middle * step
        if sum([-(-num_keys // max(chunk_len, shortest)) for num_keys, shortest in lens]) <= max_items:
            high = middle
        else:
            low = middle + 1
    return low * step


def _number_parts(
    tiles: _Tiles, chunk_len: int, block_size: int, positions: array[int], num_tile_sizes: int
) -> AttentionPlan:
    """Step 3: cut keys into chunks and give every row of every item its place."""
    num_parts_of_row = [0] * len(positions)
    parts_before: list[int] = []
    items: list[list[tuple[int, ...]]] = [[] for _ in range(num_tile_sizes)]
    for tile_idx, first_row, num_rows, first_block, first_position, num_keys, min_chunk_len in tiles.planned:
        len_here = max(chunk_len, min_chunk_len)
        num_chunks = -(-num_keys // len_here)
        for row in tiles.rows[first_row : first_row + num_rows]:
            parts_before.append(num_parts_of_row[row])
            num_parts_of_row[row] += num_chunks
        for part_idx in range(num_chunks):
            start = part_idx * len_here
            place = (first_row, num_rows, first_block + start // block_size)  # a chunk begins with a block
            items[tile_idx].append((*place, min(len_here, num_keys - start), first_position + start, part_idx, 0, 0))
    row_ranges = [0, *accumulate(num_parts if num_parts > 1 else 0 for num_parts in num_parts_of_row)]
    targets = [
        row_ranges[row] + before if num_parts_of_row[row] > 1 else -1
        for row, before in zip(tiles.rows, parts_before, strict=True)
    ]
    for same_size in items:
        same_size.sort(key=itemgetter(3), reverse=True)
    return AttentionPlan(
        positions=positions,
        row_ranges=array("i", row_ranges),
        rows=array("i", tiles.rows),
        targets=array("i", targets),
        kv_blocks=tiles.kv_blocks,
        items=tuple(array("i", list(chain.from_iterable(same_size))) for same_size in items),
        num_parts=row_ranges[-1],
    )
