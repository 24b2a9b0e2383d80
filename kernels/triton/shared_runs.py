"""Which shared runs of blocks are worth an item of their own.

Reading a run once for several sequences saves reads of keys and values; it costs every row one part more, written and
read again in fp32. Both are counted in bytes for one key/value head:

    saved = (tiles of each sequence alone, summed - tiles of all rows together) * run length * 2 D * element size
    cost  = rows * query heads in the group * (D + 1) * 4 * 2

A run is shared if saved >= break_even * cost and it is not short. So a long chunk of a prompt, whose tiles read the
keys seldom anyway, does not share, while decodes of the same prefix do. A run that does not pay goes down to those who
have it: in front of the next shared run, or of their private keys.

    shots (20 blocks) --+-- question A (2 blocks) --+-- private       A is short: its 2 blocks stand in front of
                        |                           +-- private       both private runs
                        +-- private

Source: FastTree (Pan et al. 2025) and Hydragen (Juravsky et al. 2024) for the grouping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..interface import AttentionItem, AttentionMetadata
from .tiles import Tile


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What a plan has to know of a model's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def group_size(self) -> int:
        """Query heads of a key/value head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class SharingRules:
    """When a shared run pays.

    Attributes:
        min_len: shortest run, in tokens.
        break_even: how many times the cost must be saved; it stands for what the count of bytes leaves out.
        kv_itemsize: bytes of an element of the cache.
    """

    min_len: int = 256
    break_even: float = 2.0
    kv_itemsize: int = 2


class Run(NamedTuple):
    """A run of blocks and the sequences whose rows attend to it; shared ones need no mask but a window's."""

    sequences: tuple[int, ...]
    block_ids: Sequence[int]
    first_position: int
    num_keys: int

    @property
    def is_shared(self) -> bool:
        return len(self.sequences) > 1


def choose_runs(
    metadata: AttentionMetadata, shape: HeadShape, rules: SharingRules, tile: Tile, multiple: int | None
) -> list[Run]:
    """The runs of a step, each context covered exactly once, a sequence's in order of position.

    Args:
        tile: the largest one.
        multiple: shared runs end at multiples of so many positions; the rest is handed down.
    """
    num_rows = [
        metadata.query_starts[seq_idx + 1] - metadata.query_starts[seq_idx]
        for seq_idx in range(len(metadata.context_lens))
    ]
    handed_down: list[tuple[int, ...]] = [()] * len(num_rows)
    runs: list[Run] = []
    for item in metadata.items:
        block_ids = handed_down[item.sequences[0]] + item.block_ids
        first_position = item.start - len(handed_down[item.sequences[0]]) * metadata.block_size
        if not item.is_shared:
            num_keys = item.start + item.num_tokens - first_position
            runs.append(Run(item.sequences, block_ids, first_position, num_keys))
            continue
        num_kept = _num_shared_blocks(item, block_ids, metadata.block_size, multiple)
        num_keys = num_kept * metadata.block_size
        if not _pays([num_rows[seq_idx] for seq_idx in item.sequences], num_keys, shape, rules, tile):
            num_kept = 0
        else:
            runs.append(Run(item.sequences, block_ids[:num_kept], first_position, num_keys))
        for seq_idx in item.sequences:
            handed_down[seq_idx] = block_ids[num_kept:]
    return runs


def _num_shared_blocks(item: AttentionItem, block_ids: Sequence[int], block_size: int, multiple: int | None) -> int:
    if multiple is None:
        return len(block_ids)
    assert multiple % block_size == 0
    blocks_in_multiple = multiple // block_size
    return len(block_ids) // blocks_in_multiple * blocks_in_multiple


def _pays(num_rows: Sequence[int], num_keys: int, shape: HeadShape, rules: SharingRules, tile: Tile) -> bool:
    """Whether sequences with so many rows should share a run of num_keys."""
    if num_keys < max(rules.min_len, 1):
        return False
    rows_in_tile = tile.num_rows(shape.group_size)
    num_reads_alone = sum(-(-rows // rows_in_tile) for rows in num_rows)
    num_reads_together = -(-sum(num_rows) // rows_in_tile)
    saved = (num_reads_alone - num_reads_together) * num_keys * 2 * shape.head_dim * rules.kv_itemsize
    cost = sum(num_rows) * shape.group_size * (shape.head_dim + 1) * 4 * 2
    return saved >= rules.break_even * cost and saved > 0
