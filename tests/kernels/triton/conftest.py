"""Tests of the Triton kernels, in its interpreter. Without Triton (macOS, Windows) there is nothing to test."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from ramet.kernels.attention_plan import build_attention_metadata
from ramet.kernels.interface import AttentionMetadata

if TYPE_CHECKING:
    from ramet.kernels.triton.kernels import TritonKernels

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The interpreter's operations are small: handing them to a second thread takes longer."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@dataclass(frozen=True)
class Step:
    """Sequences over a shuffled pool, with keys and values for all of their tokens.

    Attributes:
        metadata: as the engine makes it, sharing runs from one block up.
        keys, values: for each sequence, fp32 [context, Hk, D]; equal where blocks are shared.
        query: fp32 [T, Hq, D].
    """

    metadata: AttentionMetadata
    keys: list[Tensor]
    values: list[Tensor]
    query: Tensor

    def expected(self, scale: float, window: int | None = None) -> Tensor:
        """Attention in fp64, row by row."""
        outputs = []
        for seq_idx, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            first, end = self.metadata.query_starts[seq_idx : seq_idx + 2]
            for row in range(first, end):
                stop = len(key) - (end - row) + 1
                start = 0 if window is None else max(0, stop - window)
                group_size = self.query.shape[1] // key.shape[1]
                seen_keys = key[start:stop].double().repeat_interleave(group_size, dim=1)
                seen_values = value[start:stop].double().repeat_interleave(group_size, dim=1)
                scores = torch.einsum("hd,khd->hk", self.query[row].double(), seen_keys) * scale
                outputs.append(torch.einsum("hk,khd->hd", scores.softmax(-1), seen_values))
        return torch.stack(outputs)

    def attend(self, kernels: TritonKernels, scale: float, window: int | None = None) -> Tensor:
        """What the kernels make of it, with NaN in every slot that no sequence has."""
        _, num_kv_heads, head_dim = self.keys[0].shape
        num_blocks = 1 + max(max(table) for table in self.metadata.block_tables)
        caches = kernels.new_kv_cache(num_blocks, self.metadata.block_size, num_kv_heads, head_dim)
        for cache in caches:
            cache.fill_(255 if cache.dtype == torch.uint8 else float("nan"))
        for table, key, value in zip(self.metadata.block_tables, self.keys, self.values, strict=True):
            position = torch.arange(len(key))
            slots = torch.tensor(table)[position // self.metadata.block_size] * self.metadata.block_size
            kernels.store_kv(key, value, *caches, slots + position % self.metadata.block_size)
        metadata = kernels.prepare_attention(self.metadata)
        return kernels.attention(self.query, *caches, metadata, scale, window)


@pytest.fixture
def make_step() -> Callable[..., Step]:
    """make(sequences, heads): a step of sequences (context_len, num_rows, shared runs...), each run (name, blocks)."""

    def make(
        sequences: Sequence[tuple[Any, ...]], heads: tuple[int, int, int] = (3, 2, 64), block_size: int = 16
    ) -> Step:
        num_kv_heads, group_size, head_dim = heads
        free = list(range(400))
        random.Random(5).shuffle(free)
        runs: dict[str, list[int]] = {}
        tables, query_starts = [], [0]
        for context_len, num_rows, *shared in sequences:
            table: list[int] = []
            for name, count in shared:
                table += runs.setdefault(name, [free.pop() for _ in range(count)] if name not in runs else [])
            table += [free.pop() for _ in range(-(-context_len // block_size) - len(table))]
            tables.append(table)
            query_starts.append(query_starts[-1] + num_rows)
        metadata = build_attention_metadata(
            tables, query_starts, [sequence[0] for sequence in sequences], block_size, min_shared_blocks=1
        )
        pool = torch.randn(2, 400, block_size, num_kv_heads, head_dim, generator=torch.Generator().manual_seed(1))
        keys, values = (
            [part[table].flatten(0, 1)[:length] for table, length in zip(tables, metadata.context_lens, strict=True)]
            for part in pool
        )
        query = torch.randn(
            query_starts[-1], num_kv_heads * group_size, head_dim, generator=torch.Generator().manual_seed(2)
        )
        return Step(metadata, keys, values, query)

    return make
