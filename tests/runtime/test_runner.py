"""ModelRunner over a model that can be checked by hand: every logit is a mean over what the row's context holds."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from ramet.kernels.dispatch import select_kernels
from ramet.kernels.interface import Kernels
from ramet.radix.block_table import BlockTable
from ramet.radix.prefix_cache import BlockCopy, PrefixCache
from ramet.runtime.batch import Batch, ForwardBatch, ScheduledSequence
from ramet.runtime.runner import ModelRunner

NUM_LAYERS = 2


@dataclass
class Sizes:
    num_layers: int = NUM_LAYERS
    num_kv_heads: int = 1
    head_dim: int = 8
    vocab_size: int = 3


@dataclass
class FakeSequence:
    token_ids: list[int]
    block_table: BlockTable | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class MeanModel:
    """Stores (token, position, 1) as value and attends uniformly: a row's logits are the means over its context."""

    def __init__(self, kernels: Kernels) -> None:
        self.config = cast(Any, Sizes())
        self.max_model_len = 99
        self.kernels = kernels
        self.batches: list[ForwardBatch] = []

    def forward(self, batch: ForwardBatch, kv_caches: SequenceOf[tuple[Tensor, Tensor]]) -> Tensor:
        assert torch.is_inference_mode_enabled()
        self.batches.append(batch)
        value = torch.zeros(len(batch.token_ids), 1, 8)
        value[:, 0, 0] = batch.token_ids
        value[:, 0, 1] = batch.positions
        value[:, 0, 2] = 1
        means = []
        for key_cache, value_cache in kv_caches:
            self.kernels.store_kv(torch.zeros_like(value), value, key_cache, value_cache, batch.attention.slots)
            query = torch.zeros_like(value)
            means.append(self.kernels.attention(query, key_cache, value_cache, batch.attention, 1.0)[:, 0])
        assert len(means) == NUM_LAYERS
        assert torch.equal(means[0], means[1])
        return means[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden[:, :3]


def expected_row(token_ids: list[int], position: int) -> list[float]:
    seen = token_ids[: position + 1]
    return [sum(seen) / len(seen), position / 2, 1.0]


class Bench:
    """A runner, a prefix cache, and the few calls an engine would make of them."""

    def __init__(self) -> None:
        kernels = select_kernels("cpu")
        self.model = MeanModel(kernels)
        self.runner = ModelRunner(self.model, kernels, num_blocks=256, block_size=16)
        self.cache = PrefixCache(256, 16)

    def start(self, token_ids: list[int]) -> tuple[FakeSequence, list[BlockCopy]]:
        sequence = FakeSequence(token_ids)
        match = self.cache.match(token_ids, max_tokens=len(token_ids) - 1)
        acquired = self.cache.acquire(token_ids, match, len(token_ids))
        assert acquired is not None
        sequence.block_table, copies = acquired
        return sequence, copies

    def run(self, *parts: tuple[FakeSequence, int, int], copies: list[BlockCopy] | None = None) -> Tensor:
        """A step of (sequence, number of new tokens, logits_from); checks every row of logits."""
        batch = Batch(block_copies=copies or [])
        expected = []
        for sequence, num_new_tokens, logits_from in parts:
            table = sequence.block_table
            assert table is not None
            start = table.num_computed_tokens
            assert self.cache.extend(table, start + num_new_tokens)
            batch.scheduled.append(ScheduledSequence(cast(Any, sequence), start, num_new_tokens, logits_from))
            rows = range(start + min(logits_from, num_new_tokens - 1), start + num_new_tokens)
            expected += [expected_row(sequence.token_ids, position) for position in rows]
        logits = self.runner.forward(batch)
        for part in batch.scheduled:
            table = cast(BlockTable, part.sequence.block_table)
            self.cache.commit(table, part.end)
        assert logits.shape == (len(expected), 3)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, torch.tensor(expected).reshape(-1, 3), atol=1e-3, rtol=1e-5)
        return logits


@pytest.fixture
def bench() -> Bench:
    return Bench()


def tokens(count: int, salt: int) -> list[int]:
    return [(7 * idx * idx + salt) % 90 for idx in range(count)]


def test_sizes_come_from_the_model_and_the_cache(bench: Bench) -> None:
    runner = bench.runner
    assert (runner.vocab_size, runner.num_blocks, runner.block_size, runner.max_model_len) == (3, 256, 16, 99)


def test_prefill_in_chunks_then_decode(bench: Bench) -> None:
    sequence, copies = bench.start(tokens(100, 1))
    assert copies == []
    assert bench.run((sequence, 37, 37)).shape == (1, 3)  # of the last token, in any case
    bench.run((sequence, 60, 0))
    bench.run((sequence, 3, 2))
    for token_id in (5, 6, 7):
        sequence.token_ids.append(token_id)
        bench.run((sequence, 1, 0))


def test_mixed_batch_gives_rows_in_its_order(bench: Bench) -> None:
    first, _ = bench.start(tokens(70, 2))
    second, _ = bench.start(tokens(33, 3))
    third, _ = bench.start(tokens(20, 4))
    bench.run((first, 69, 69), (second, 33, 30))
    second.token_ids.append(8)
    bench.run((second, 1, 0), (third, 20, 15), (first, 1, 0))
    batch = bench.model.batches[-1]
    assert batch.positions.tolist() == [33, *range(20), 69]
    assert batch.token_ids.tolist() == [8, *third.token_ids, first.token_ids[69]]
    assert batch.logit_rows.tolist() == [0, 16, 17, 18, 19, 20, 21]


@pytest.mark.parametrize("num_shared", [64, 71, 79, 160])
def test_a_cached_prefix_is_read_and_its_partial_block_copied(bench: Bench, num_shared: int) -> None:
    donor, _ = bench.start(tokens(200, 5))
    bench.run((donor, 200, 199))
    heirs = []
    all_copies: list[BlockCopy] = []
    for salt in (91, 92, 93):
        heir, copies = bench.start(donor.token_ids[:num_shared] + [salt] * 9)
        assert cast(BlockTable, heir.block_table).num_computed_tokens == num_shared
        heirs.append(heir)
        all_copies += copies
    assert len(all_copies) == (3 if num_shared % 16 else 0)
    bench.run((heirs[0], 9, 8), (heirs[1], 4, 0), (heirs[2], 9, 9), copies=all_copies)
    assert any(item.is_shared for item in bench.model.batches[-1].attention.items)
    donor.token_ids.append(1)
    bench.run((donor, 1, 0), (heirs[1], 5, 0))


def test_preparing_mutates_nothing(bench: Bench) -> None:
    sequence, _ = bench.start(tokens(30, 6))
    table = cast(BlockTable, sequence.block_table)
    before = (list(sequence.token_ids), list(table.block_ids), table.num_computed_tokens)
    bench.runner.tensors(Batch([ScheduledSequence(cast(Any, sequence), 0, 30, 29)]))
    assert (sequence.token_ids, table.block_ids, table.num_computed_tokens) == before
