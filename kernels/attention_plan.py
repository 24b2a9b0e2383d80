"""Plan the attention of a step: which runs of KV blocks are read once for several sequences, which for one alone.

Sequences that share a prefix hold the same block ids at the front of their tables, because a block belongs to one
place of the radix tree. So the tables themselves tell who shares what:

    table of A   7 3 9 4 | 1 8          shared by A, B, C:  7 3 9 4
    table of B   7 3 9 4 | 6 2 5 0 | 11 shared by A, B:     (nothing more)
    table of C   7 3 9 4 | 6 2 5 0 | 12 shared by B, C:     6 2 5 0     private: 1 8 / 11 / 12

Only blocks that lie wholly before a sequence's first row of the step are shared: their tokens are visible to all of
its rows and none of them is written in this step, so no mask is needed. The rest is the sequence's private item, which
always holds the step's own tokens. Pure Python, no tensors but the slots; the same for every backend.

Source of the idea: Hydragen (Juravsky et al. 2024) and ChunkAttention (Ye et al. 2024), here with any number of levels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .interface import AttentionItem, AttentionMetadata

MIN_SHARED_BLOCKS = 4
"""Shorter shared runs cost more in extra ops and merging than they save in reading."""


def build_attention_metadata(
    block_tables: Sequence[Sequence[int]],
    query_starts: Sequence[int],
    context_lens: Sequence[int],
    block_size: int,
    device: torch.device | str = "cpu",
    min_shared_blocks: int = MIN_SHARED_BLOCKS,
) -> AttentionMetadata:
    """Metadata of one step from the tables of its S sequences.

    Args:
        block_tables: S lists of block ids, each covering at least its context; longer ones are allowed.
        query_starts: S + 1 row offsets, from 0 up; every sequence has at least one row.
        context_lens: S context lengths, the step's own tokens included.
        block_size: token slots in a block.
        device: where `slots` goes.
        min_shared_blocks: shortest run worth sharing.

    Cost: O(S log L) list slices for tables of length L, plus O(T) for the slots.
    """
    assert len(query_starts) == len(block_tables) + 1 == len(context_lens) + 1
    tables = [
        _first_of(table, -(-length // block_size)) for table, length in zip(block_tables, context_lens, strict=True)
    ]
    slots: list[int] = []
    num_computed_blocks: list[int] = []
    for seq_idx, (table, context_len) in enumerate(zip(tables, context_lens, strict=True)):
        first = context_len - (query_starts[seq_idx + 1] - query_starts[seq_idx])
        assert 0 <= first < context_len <= len(table) * block_size
        num_computed_blocks.append(first // block_size)
        slots += _slots_of(table, first, context_len, block_size)
    return AttentionMetadata(
        block_size=block_size,
        query_starts=tuple(query_starts),
        context_lens=tuple(context_lens),
        block_tables=tables,
        slots=torch.tensor(slots, dtype=torch.int64, device=device),
        items=plan_attention_items(tables, num_computed_blocks, context_lens, block_size, min_shared_blocks),
    )


def _first_of(table: Sequence[int], num_blocks: int) -> list[int]:
    """A copy of its beginning; a list's is made at once."""
    return table[:num_blocks] if isinstance(table, list) else list(table[:num_blocks])


def plan_attention_items(
    block_tables: Sequence[list[int]],
    num_computed_blocks: Sequence[int],
    context_lens: Sequence[int],
    block_size: int,
    min_shared_blocks: int = MIN_SHARED_BLOCKS,
) -> list[AttentionItem]:
    """Shared items in order of the tree (a run before the runs that continue it), then one private item a sequence.

    Args:
        block_tables: S lists of block ids that just cover their context.
        num_computed_blocks: per sequence, how many leading blocks lie wholly before its first row of the step.
        context_lens: S context lengths.
    """
    assert min_shared_blocks >= 1
    items: list[AttentionItem] = []
    private_from = [0] * len(block_tables)
    # A pending group: sequences whose tables agree on blocks [0, depth), of which [start, depth) are in no item yet.
    pending = [(list(range(len(block_tables))), 0, 0)]
    while pending:
        members, start, depth = pending.pop()
        for group in _split_by_block(members, block_tables, num_computed_blocks, depth):
            group_start = start
            end = _common_end(group, block_tables, num_computed_blocks, depth)
            if end - start >= min_shared_blocks:
                run = tuple(block_tables[group[0]][start:end])
                items.append(AttentionItem(tuple(group), run, start * block_size, len(run) * block_size))
                for seq_idx in group:
                    private_from[seq_idx] = end
                group_start = end
            pending.append((group, group_start, end))
    for seq_idx, table in enumerate(block_tables):
        start = private_from[seq_idx] * block_size
        rest = tuple(table[private_from[seq_idx] :])
        items.append(AttentionItem((seq_idx,), rest, start, context_lens[seq_idx] - start))
    return items


def _split_by_block(
    members: list[int], block_tables: Sequence[list[int]], num_computed_blocks: Sequence[int], depth: int
) -> list[list[int]]:
    """Groups of at least two members whose computed blocks go on at `depth` with the same block."""
    groups: dict[int, list[int]] = {}
    for seq_idx in members:
        if num_computed_blocks[seq_idx] > depth:
            groups.setdefault(block_tables[seq_idx][depth], []).append(seq_idx)
    return [group for group in groups.values() if len(group) > 1]


def _common_end(
    members: list[int], block_tables: Sequence[list[int]], num_computed_blocks: Sequence[int], depth: int
) -> int:
    """Largest end such that blocks [depth, end) are computed and equal in all members: a bisection over slices."""
    first = block_tables[members[0]]
    others = [block_tables[seq_idx] for seq_idx in members[1:]]
    low, high = depth, min(num_computed_blocks[seq_idx] for seq_idx in members)
    trial = high
    while low < high:
        run = first[low:trial]
        if all(table[low:trial] == run for table in others):
            low = trial
        else:
            high = trial - 1
        trial = (low + high + 1) // 2
    return low


def _slots_of(table: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
    """Slots of positions [start, end) of a sequence."""
    if end - start == 1:
        return [table[start // block_size] * block_size + start % block_size]
    first_block = start // block_size
    slots: list[int] = []
    for block_id in table[first_block : -(-end // block_size)]:
        slots.extend(range(block_id * block_size, (block_id + 1) * block_size))
    return slots[start - first_block * block_size : end - first_block * block_size]
