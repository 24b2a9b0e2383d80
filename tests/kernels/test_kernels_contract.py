"""Every backend of the registry does what the oracle does: the contract of `interface.Kernels`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

from ramet.kernels.attention_plan import build_attention_metadata
from ramet.kernels.dispatch import KERNELS, select_kernels, why_unavailable
from ramet.kernels.interface import AttentionMetadata, Kernels

BLOCK_SIZE = 16
NUM_BLOCKS = 512
HEAD_SHAPES = [(3, 3, 64), (2, 1, 80), (1, 9, 128)]
"""(key/value heads, query heads per key/value head, head dimension)"""


RUNNABLE = {name for name in KERNELS if why_unavailable(name, torch.device("cpu")) is None}
"""All backends; without Triton, all but that one."""

INTERPRETED = {"triton"} & RUNNABLE
"""Backends that run in an interpreter here, at a thousandth of the speed: they get a few of the attention cases, and
their own tests in a folder of their own go through the rest."""


@pytest.fixture(params=sorted(RUNNABLE))
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return select_kernels("cpu", request.param)


@pytest.fixture(params=sorted(RUNNABLE - {"reference"}))
def other(request: pytest.FixtureRequest) -> Kernels:
    """Any backend but the oracle, to be compared with it."""
    return select_kernels("cpu", request.param)


@pytest.fixture
def reference() -> Kernels:
    return select_kernels("cpu", "reference")


LINEAR_ATOL = {"torch": 1e-5, "torch_int8": 0.4, "triton": 1e-5}
"""For standard normal rows and weights of 48 columns: int8 weights are a hundredth or so off."""


@dataclass(frozen=True)
class Step:
    """Sequences of a step: block tables, context lengths and numbers of new tokens."""

    tables: list[list[int]]
    context_lens: list[int]
    num_rows: list[int]

    def metadata(self, min_shared_blocks: int = 4) -> AttentionMetadata:
        query_starts = [0]
        for count in self.num_rows:
            query_starts.append(query_starts[-1] + count)
        return build_attention_metadata(
            self.tables, query_starts, self.context_lens, BLOCK_SIZE, min_shared_blocks=min_shared_blocks
        )

    def used_slots(self) -> Tensor:
        slots = {
            table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            for table, length in zip(self.tables, self.context_lens, strict=True)
            for position in range(length)
        }
        return torch.tensor(sorted(slots))


class StepBuilder:
    """Lays out sequences over a shuffled or consecutive pool, with shared runs by name."""

    def __init__(self, is_shuffled: bool) -> None:
        self.free = list(range(NUM_BLOCKS))
        if is_shuffled:
            random.Random(7).shuffle(self.free)
        self.runs: dict[str, list[int]] = {}
        self.step = Step([], [], [])

    def _take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        assert len(taken) == count
        return taken

    def add(self, context_len: int, num_rows: int, *shared: tuple[str, int]) -> None:
        """A sequence whose table begins with the shared runs (name, blocks) and covers context_len."""
        table: list[int] = []
        for name, count in shared:
            self.runs.setdefault(name, self._take(count) if name not in self.runs else [])
            table += self.runs[name]
        table += self._take(-(-context_len // BLOCK_SIZE) - len(table))
        self.step.tables.append(table)
        self.step.context_lens.append(context_len)
        self.step.num_rows.append(num_rows)


def tree_step(is_shuffled: bool) -> Step:
    """Few-shot prefix shared by all, then a question shared by some; decodes, chunks and outsiders in one step."""
    builder = StepBuilder(is_shuffled)
    shots, first, second = ("shots", 20), ("first", 10), ("second", 5)
    builder.add(323, 1, shots)
    builder.add(500, 1, shots, first)
    builder.add(481, 1, shots, first)
    builder.add(530, 50, shots, first)
    builder.add(401, 1, shots, second)
    builder.add(420, 7, shots, second)
    builder.add(360, 40, shots)
    builder.add(321, 1, shots)
    builder.add(1, 1)
    builder.add(300, 300)
    builder.add(300, 1)
    builder.add(48, 48)
    builder.add(47, 3)
    return builder.step


def border_step(is_shuffled: bool) -> Step:
    """Decodes and chunks at every length around the block boundaries, without sharing."""
    builder = StepBuilder(is_shuffled)
    for length in (1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 300):
        builder.add(length, 1)
        builder.add(length, min(length, 5))
    for length, num_rows in ((16, 16), (33, 32), (257, 33), (290, 40)):
        builder.add(length, num_rows)
    return builder.step


def prefill_step(is_shuffled: bool) -> Step:
    """Chunks longer than a masked unit, behind a shared prefix and alone."""
    builder = StepBuilder(is_shuffled)
    builder.add(1300, 530, ("prefix", 40))
    builder.add(700, 60, ("prefix", 40))
    builder.add(600, 600)
    return builder.step


def fork_step(is_shuffled: bool) -> Step:
    """A prefix shared by three, one of them with a chunk, and an outsider: what an interpreter gets through in time."""
    builder = StepBuilder(is_shuffled)
    builder.add(281, 1, ("prefix", 17))
    builder.add(290, 1, ("prefix", 17))
    builder.add(300, 20, ("prefix", 17))
    builder.add(33, 5)
    return builder.step


STEPS = {"tree": tree_step, "border": border_step, "prefill": prefill_step, "fork": fork_step}
WINDOWS = [1, 7, 16, 33, 257, 10_000]


def sharing_step(backend: Kernels, is_shuffled: bool) -> Step:
    return STEPS["fork" if backend.name in INTERPRETED else "tree"](is_shuffled)


def attention_cases() -> Iterator[tuple[str, str, tuple[int, int, int], int | None, bool]]:
    """Backend, step, heads, window, and whether the blocks are shuffled."""
    for backend in sorted(RUNNABLE - {"reference"} - INTERPRETED):
        for name, is_shuffled in product(("tree", "border", "prefill"), (False, True)):
            yield from ((backend, name, heads, None, is_shuffled) for heads in HEAD_SHAPES)
            yield from ((backend, name, (1, 3, 64), window, is_shuffled) for window in WINDOWS)
    for backend in sorted(INTERPRETED):
        yield backend, "border", (1, 3, 64), None, True
        yield backend, "tree", (1, 3, 64), None, True
        yield backend, "tree", (1, 3, 64), 257, False
        yield from ((backend, "fork", heads, None, True) for heads in HEAD_SHAPES)
        yield from ((backend, "fork", (1, 3, 64), window, True) for window in WINDOWS)


def stored_caches(backend: Kernels, key: Tensor, value: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Caches that hold key and value rows at `slots` and poison everywhere else."""
    key_cache, value_cache = backend.new_kv_cache(NUM_BLOCKS, BLOCK_SIZE, key.shape[1], key.shape[2])
    key_cache.fill_(float("nan"))
    value_cache.fill_(float("nan"))
    backend.store_kv(key, value, key_cache, value_cache, slots)
    return key_cache, value_cache


def attend_both(
    backends: tuple[Kernels, Kernels],
    step: Step,
    heads: tuple[int, int, int],
    window: int | None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(len(step.tables) + (window or 0))
    num_kv_heads, group_size, head_dim = heads
    slots = step.used_slots()
    key, value = (torch.randn(len(slots), num_kv_heads, head_dim) for _ in range(2))
    query = torch.randn(sum(step.num_rows), num_kv_heads * group_size, head_dim).to(dtype)
    outputs = []
    for backend in backends:
        caches = stored_caches(backend, key, value, slots)
        metadata = backend.prepare_attention(step.metadata())
        outputs.append(backend.attention(query, *caches, metadata, head_dim**-0.5, window))
    return outputs[0], outputs[1]


@pytest.mark.parametrize(("backend", "name", "heads", "window", "is_shuffled"), list(attention_cases()), ids=str)
def test_attention_equals_the_oracle_whatever_lies_in_other_slots(
    reference: Kernels, backend: str, name: str, heads: tuple[int, int, int], window: int | None, is_shuffled: bool
) -> None:
    other = select_kernels("cpu", backend)
    output, expected = attend_both((other, reference), STEPS[name](is_shuffled), heads, window)
    torch.testing.assert_close(output, expected, atol=5e-6, rtol=1e-5)


def test_attention_keeps_the_dtype_of_the_query(other: Kernels, reference: Kernels) -> None:
    output, expected = attend_both((other, reference), sharing_step(other, True), (2, 2, 64), None, torch.bfloat16)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected, atol=1e-2, rtol=1e-2)


def test_attention_takes_metadata_that_was_not_prepared(kernels: Kernels) -> None:
    step = sharing_step(kernels, False)
    slots = step.used_slots()
    key, value = torch.randn(2, len(slots), 2, 64).unbind()
    caches = stored_caches(kernels, key, value, slots)
    query = torch.randn(sum(step.num_rows), 4, 64)
    prepared = kernels.attention(query, *caches, kernels.prepare_attention(step.metadata()), 0.125)
    assert torch.equal(kernels.attention(query, *caches, step.metadata(), 0.125), prepared)


@pytest.mark.parametrize("num_rows", [[1, 1, 1], [3], [40, 1, 9]])
def test_attention_takes_queries_of_any_strides(kernels: Kernels, num_rows: list[int]) -> None:
    builder = StepBuilder(True)
    for count in num_rows:
        builder.add(70 + count, count)
    step = builder.step
    slots = step.used_slots()
    key, value = torch.randn(2, len(slots), 2, 64).unbind()
    caches = stored_caches(kernels, key, value, slots)
    query = torch.randn(sum(num_rows), 4, 64)
    strided = query.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    assert strided.stride(-1) != 1
    expected = kernels.attention(query, *caches, step.metadata(), 0.125)
    torch.testing.assert_close(kernels.attention(strided, *caches, step.metadata(), 0.125), expected)


def test_sharing_changes_the_result_by_rounding_only(kernels: Kernels) -> None:
    step = sharing_step(kernels, False)
    slots = step.used_slots()
    key, value = torch.randn(2, len(slots), 2, 64).unbind()
    caches = stored_caches(kernels, key, value, slots)
    query = torch.randn(sum(step.num_rows), 4, 64)
    shared = kernels.attention(query, *caches, step.metadata(), 0.125)
    unshared = kernels.attention(query, *caches, step.metadata(min_shared_blocks=10_000), 0.125)
    torch.testing.assert_close(shared, unshared, atol=2e-6, rtol=1e-5)


def test_large_scores_do_not_overflow(other: Kernels, reference: Kernels) -> None:
    step = sharing_step(other, True)
    slots = step.used_slots()
    key, value = torch.randn(2, len(slots), 1, 64).unbind()
    query = torch.randn(sum(step.num_rows), 2, 64) * 300
    outputs = [
        backend.attention(query, *stored_caches(backend, key, value, slots), step.metadata(), 1.0)
        for backend in (other, reference)
    ]
    assert outputs[0].isfinite().all()
    torch.testing.assert_close(outputs[0], outputs[1], atol=2e-3, rtol=1e-3)


def read_block(backend: Kernels, value_cache: Tensor, block_id: int) -> Tensor:
    """What a block holds [B, Hk, D], seen through attention: with a window of 1 a row sees its own value only."""
    num_kv_heads, head_dim = 2, 8
    key_cache, _ = backend.new_kv_cache(NUM_BLOCKS, BLOCK_SIZE, num_kv_heads, head_dim)
    metadata = build_attention_metadata([[block_id]], [0, BLOCK_SIZE], [BLOCK_SIZE], BLOCK_SIZE)
    query = torch.zeros(BLOCK_SIZE, num_kv_heads, head_dim)
    return backend.attention(query, key_cache, value_cache, metadata, 1.0, sliding_window=1)


def test_store_writes_the_given_slots_and_no_other(kernels: Kernels) -> None:
    value = torch.randn(3, 2, 8)
    key_cache, value_cache = kernels.new_kv_cache(NUM_BLOCKS, BLOCK_SIZE, 2, 8)
    kernels.store_kv(value, value, key_cache, value_cache, torch.tensor([35, 0, 511 * BLOCK_SIZE + 15]))
    assert torch.equal(read_block(kernels, value_cache, 2)[3], value[0])
    assert torch.equal(read_block(kernels, value_cache, 0)[0], value[1])
    assert torch.equal(read_block(kernels, value_cache, 511)[15], value[2])
    assert int((key_cache != 0).sum()) == int((value_cache != 0).sum()) == value.numel()


def test_copies_read_before_they_write(kernels: Kernels) -> None:
    _, value_cache = kernels.new_kv_cache(NUM_BLOCKS, BLOCK_SIZE, 2, 8)
    value_cache.copy_(torch.randn(value_cache.shape))
    before = {block_id: read_block(kernels, value_cache, block_id) for block_id in range(5)}
    kernels.copy_blocks(value_cache, [0, 1, 2, 2], [1, 0, 3, 2])
    for src, dst in ((0, 1), (1, 0), (2, 3), (2, 2), (4, 4)):
        assert torch.equal(read_block(kernels, value_cache, dst), before[src]), (src, dst)


@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 8, 33, 95, 96, 130])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(other: Kernels, reference: Kernels, num_rows: int, has_bias: bool) -> None:
    x, weight = torch.randn(num_rows, 48), torch.randn(80, 48)
    bias = torch.randn(80) if has_bias else None
    untouched = x.clone(), weight.clone()
    output = other.linear(x, other.prepare_weight(weight), bias)
    expected = reference.linear(x, reference.prepare_weight(weight), bias)
    torch.testing.assert_close(output, expected, atol=LINEAR_ATOL[other.name], rtol=1e-5)
    assert torch.equal(x, untouched[0])
    assert torch.equal(weight, untouched[1])


def test_linear_takes_rows_of_any_strides_and_keeps_their_dtype(kernels: Kernels) -> None:
    x = torch.randn(48, 5).t()
    weight = kernels.prepare_weight(torch.randn(80, 48))
    expected = kernels.linear(x.contiguous(), weight)
    torch.testing.assert_close(kernels.linear(x, weight), expected, atol=1e-5, rtol=1e-5)
    half_weight = kernels.prepare_weight(torch.randn(80, 48).bfloat16())
    assert kernels.linear(x.bfloat16(), half_weight).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_reads_rows_of_a_prepared_weight(other: Kernels, reference: Kernels, dtype: torch.dtype) -> None:
    table, token_ids = torch.randn(50, 48).to(dtype), torch.tensor([3, 49, 3, 0])
    weight = other.prepare_weight(table)
    assert weight.shape == table.shape
    rows = other.embedding(token_ids, weight)
    assert rows.dtype == dtype
    tolerance = 0.02 if other.name == "torch_int8" else 0.0
    torch.testing.assert_close(rows, reference.embedding(token_ids, table), atol=tolerance, rtol=tolerance)
    assert other.embedding(token_ids[:0], weight).shape == (0, 48)


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 5, 64])
def test_pointwise_ops(
    other: Kernels, reference: Kernels, num_rows: int, dtype: torch.dtype, is_transposed: bool
) -> None:
    x = (torch.randn(96, num_rows).t() if is_transposed else torch.randn(num_rows, 96)).to(dtype)
    weight, bias = torch.randn(96).to(dtype), torch.randn(96).to(dtype)
    untouched = x.clone()
    pairs = [
        (other.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5)),
        (other.layer_norm(x, weight, bias, 1e-5), reference.layer_norm(x, weight, bias, 1e-5)),
        (other.silu_mul(x), reference.silu_mul(x)),
    ]
    tolerance = 1e-5 if dtype == torch.float32 else 4e-2
    for output, expected in pairs:
        assert output.dtype == dtype
        torch.testing.assert_close(output, expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(x, untouched)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("head_dim", "half"), [(64, 32), (80, 16), (128, 64)])
def test_rotary(other: Kernels, reference: Kernels, head_dim: int, half: int, dtype: torch.dtype) -> None:
    x = torch.randn(11, 3, head_dim).to(dtype)
    angles = torch.randn(11, half)
    untouched = x.clone()
    output = other.rotary(x, angles.cos(), angles.sin())
    assert output.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(output, reference.rotary(x, angles.cos(), angles.sin()), atol=tolerance, rtol=tolerance)
    assert torch.equal(x, untouched)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_sum_and_its_norm(other: Kernels, reference: Kernels, dtype: torch.dtype) -> None:
    x, residual = torch.randn(7, 96).to(dtype), torch.randn(7, 96).to(dtype)
    weight = torch.randn(96).to(dtype)
    untouched = x.clone(), residual.clone()
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    expected = reference.add_rms_norm(x, residual, weight, 1e-5)
    for got, wanted in zip(other.add_rms_norm(x, residual, weight, 1e-5), expected, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)
    assert torch.equal(x, untouched[0])
    assert torch.equal(residual, untouched[1])


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "half"), [(4, 2, 64, 32), (3, 1, 80, 20)])
def test_rotate_and_store_is_rotate_then_store(
    kernels: Kernels, num_heads: int, num_kv_heads: int, head_dim: int, half: int
) -> None:
    qkv, angles = torch.randn(9, num_heads + 2 * num_kv_heads, head_dim), torch.randn(9, half)
    cos, sin, slots = angles.cos(), angles.sin(), torch.randperm(64)[:9]
    fused, apart = (kernels.new_kv_cache(4, BLOCK_SIZE, num_kv_heads, head_dim) for _ in range(2))
    query = kernels.rotary_store(qkv, num_kv_heads, cos, sin, *fused, slots)
    rotated = kernels.rotary(qkv[:, :-num_kv_heads], cos, sin)
    kernels.store_kv(rotated[:, num_heads:], qkv[:, -num_kv_heads:], *apart, slots)
    assert torch.equal(query, rotated[:, :num_heads])
    for got, wanted in zip(fused, apart, strict=True):
        assert torch.equal(got, wanted)
