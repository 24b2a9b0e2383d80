"""Paged steps: sequences over a shuffled pool, with some runs of blocks in common; and their attention in fp64."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ramet.kernels.attention_plan import build_attention_metadata
from ramet.kernels.interface import AttentionMetadata
from ramet.kernels.triton.kernels import TritonKernels
from ramet.kernels.triton.kv_cache import KVView
from ramet.kernels.triton.shared_runs import HeadShape

from .settings import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class SequenceShape:
    """Attributes:
    num_rows: the last tokens of the context, which the step computes.
    shared: names and lengths, in blocks, of the runs it begins with.
    """

    context_len: int
    num_rows: int = 1
    shared: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class PagedStep:
    """Sequences and where their blocks are in a pool of `num_blocks`.

    Attributes:
        metadata: with the runs that sequences share, unless it was made without.
    """

    tables: list[list[int]]
    query_starts: list[int]
    context_lens: list[int]
    num_blocks: int
    metadata: AttentionMetadata

    @property
    def num_rows(self) -> int:
        return self.query_starts[-1]

    @property
    def num_kv_tokens(self) -> int:
        """Tokens of all contexts; shared ones count for each sequence."""
        return sum(self.context_lens)

    @property
    def num_pairs(self) -> int:
        """(query row, key) pairs of causal attention."""
        total = 0
        for idx, context_len in enumerate(self.context_lens):
            num_rows = self.query_starts[idx + 1] - self.query_starts[idx]
            total += num_rows * (context_len - num_rows) + num_rows * (num_rows + 1) // 2
        return total

    def kv_slots(self, seq_idx: int) -> tuple[list[int], list[int]]:
        """Block and offset of every token of a context."""
        positions = range(self.context_lens[seq_idx])
        table = self.tables[seq_idx]
        return [table[p // BLOCK_SIZE] for p in positions], [p % BLOCK_SIZE for p in positions]

    def alone(self, seq_idx: int, device: torch.device) -> PagedStep:
        """The last row of one sequence, over the same pool."""
        context_len = self.context_lens[seq_idx]
        return _paged([self.tables[seq_idx]], [0, 1], [context_len], self.num_blocks, device)


def make_step(
    shapes: Sequence[SequenceShape], device: torch.device, *, is_sharing: bool = True, num_spare_blocks: int = 4
) -> PagedStep:
    """Lay sequences out. Blocks are handed out in random order, `num_spare_blocks` are nobody's."""
    num_private = sum(-(-shape.context_len // BLOCK_SIZE) for shape in shapes)
    free = list(range(num_private + num_spare_blocks))
    random.Random(0).shuffle(free)
    num_blocks = len(free)
    runs: dict[str, list[int]] = {}
    tables, query_starts = [], [0]
    for shape in shapes:
        table: list[int] = []
        for name, count in shape.shared:
            if name not in runs:
                runs[name] = [free.pop() for _ in range(count)]
            table += runs[name]
        table += [free.pop() for _ in range(-(-shape.context_len // BLOCK_SIZE) - len(table))]
        tables.append(table)
        query_starts.append(query_starts[-1] + shape.num_rows)
    context_lens = [shape.context_len for shape in shapes]
    return _paged(tables, query_starts, context_lens, num_blocks, device, is_sharing=is_sharing)


def _paged(
    tables: list[list[int]],
    query_starts: list[int],
    context_lens: list[int],
    num_blocks: int,
    device: torch.device,
    *,
    is_sharing: bool = True,
) -> PagedStep:
    min_shared_blocks = 1 if is_sharing else num_blocks + 1
    metadata = build_attention_metadata(
        tables, query_starts, context_lens, BLOCK_SIZE, device, min_shared_blocks=min_shared_blocks
    )
    return PagedStep(tables, query_starts, context_lens, num_blocks, metadata)


def new_caches(kernels: TritonKernels, step: PagedStep, shape: HeadShape) -> tuple[Tensor, Tensor]:
    return kernels.new_kv_cache(step.num_blocks, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)


def stored_rows(view: KVView, step: PagedStep, seq_idx: int) -> Tensor:
    """What a cache holds of a context, in fp64 [context, Hk, D]: codes times their scales, or plain numbers."""
    block, offset = (torch.tensor(ids, device=view.rows.device) for ids in step.kv_slots(seq_idx))
    rows = view.rows[block, :, offset].double()
    return rows if view.scales is None else rows * view.scales[block, :, offset].double()[..., None]


def exact_attention(
    query: Tensor, views: tuple[KVView, KVView], step: PagedStep, scale: float, window: int | None = None
) -> Tensor:
    """Attention of [T, Hq, D] in fp64 over what the caches hold."""
    outputs = []
    for seq_idx, context_len in enumerate(step.context_lens):
        first, end = step.query_starts[seq_idx : seq_idx + 2]
        keys, values = (stored_rows(view, step, seq_idx) for view in views)
        group_size = query.shape[1] // keys.shape[1]
        keys, values = (rows.repeat_interleave(group_size, dim=1) for rows in (keys, values))
        scores = torch.einsum("rhd,khd->hrk", query[first:end].double(), keys) * scale
        position = torch.arange(context_len - (end - first), context_len, device=query.device)[:, None]
        key = torch.arange(context_len, device=query.device)[None, :]
        is_seen = key <= position
        if window is not None:
            is_seen &= key > position - window
        weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hrk,khd->rhd", weights, values))
    return torch.cat(outputs)
