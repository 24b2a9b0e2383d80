"""Attention over work items against fp64: every tile, chunk, shared run, window and storage; and batch invariance."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from ramet.kernels.attention_plan import build_attention_metadata
from ramet.kernels.triton.kernels import AttentionOptions, TritonKernels
from ramet.kernels.triton.plan import plan_attention
from ramet.kernels.triton.plan_buffers import PlanBuffers, PlanCapacity
from ramet.kernels.triton.shared_runs import HeadShape
from ramet.kernels.triton.tiles import Tile

CPU = torch.device("cpu")
SMALL_TILES = (Tile(16, 32, 4, 1, False), Tile(64, 64, 4, 1, True))
"""Several passes over short contexts, in both kinds of loop."""
CUT_UP = AttentionOptions(tiles=SMALL_TILES, min_chunk_len=32, sharing_min_len=32, sharing_break_even=0.0)
TREE = [
    (100, 1, ("root", 4)),
    (130, 1, ("root", 4), ("twig", 3)),
    (121, 1, ("root", 4), ("twig", 3)),
    (112, 40, ("root", 4)),
    (1, 1),
    (70, 70),
    (33, 2),
]


def assert_near(actual: Tensor, expected: Tensor, atol: float = 5e-6) -> None:
    assert actual.isfinite().all()
    assert float((actual.double() - expected).abs().max()) <= atol


@pytest.mark.parametrize("heads", [(1, 3, 64), (2, 1, 80), (1, 16, 32), (1, 5, 8)], ids=str)
def test_tiles_chunks_and_shared_runs(make_step, heads: tuple[int, int, int]) -> None:
    step = make_step(TREE, heads)
    kernels = TritonKernels(CPU, options=CUT_UP)
    shape = HeadShape(heads[0] * heads[1], heads[0], heads[2])
    plan = plan_attention(step.metadata, shape, kernels.plan_rules(shape))
    assert all(plan.num_items(tile_idx) > 1 for tile_idx in range(2))
    assert plan.num_parts > 8
    assert_near(step.attend(kernels, 0.3), step.expected(0.3))


@pytest.mark.parametrize("window", [1, 20, 64, 1000])
def test_windows(make_step, window: int) -> None:
    step = make_step(TREE, (1, 2, 32))
    assert_near(step.attend(TritonKernels(CPU, options=CUT_UP), 0.3, window), step.expected(0.3, window))


@pytest.mark.parametrize("block_size", [1, 4, 24])
def test_blocks_of_any_size(make_step, block_size: int) -> None:
    num_blocks = -(-48 // block_size)
    step = make_step([(60, 1, ("root", num_blocks)), (90, 3, ("root", num_blocks)), (50, 50)], (1, 2, 32), block_size)
    assert_near(step.attend(TritonKernels(CPU, options=CUT_UP), 0.3), step.expected(0.3))


@pytest.mark.parametrize(
    ("kv_dtype", "atol"),
    [(torch.float16, 2e-3), (torch.bfloat16, 3e-2), (torch.int8, 2e-2), (torch.float8_e4m3fn, 0.12)],
    ids=str,
)
def test_storage(make_step, kv_dtype: torch.dtype, atol: float) -> None:
    """Products in fp16 or codes; bf16 is multiplied in fp32 here, which the interpreter needs."""
    step = make_step(TREE, (1, 2, 64))
    kernels = TritonKernels(CPU, kv_dtype, CUT_UP)
    assert_near(step.attend(kernels, 0.125), step.expected(0.125), atol)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_queries_of_half_precision_over_quantised_keys(make_step, dtype: torch.dtype) -> None:
    step = make_step(TREE[:3], (1, 2, 64))
    expected = step.expected(0.125)
    half = type(step)(step.metadata, step.keys, step.values, step.query.to(dtype))
    output = half.attend(TritonKernels(CPU, torch.int8, CUT_UP), 0.125)
    assert output.dtype == dtype
    assert_near(output, expected, 3e-2)


def test_more_heads_than_a_tile_has_lines(make_step) -> None:
    step = make_step([(40, 2), (20, 1)], (1, 71, 16))
    assert_near(step.attend(TritonKernels(CPU, options=CUT_UP), 0.3), step.expected(0.3))


def test_scores_of_any_size(make_step) -> None:
    step = make_step(TREE[:4], (1, 2, 32))
    large = type(step)(step.metadata, step.keys, step.values, step.query * 1e4)
    assert_near(large.attend(TritonKernels(CPU, options=CUT_UP), 1.0), large.expected(1.0), 1e-2)


def test_pools_of_more_elements_than_an_int32_counts() -> None:
    """Reserved, not written: only the last block is touched."""
    num_blocks, num_heads, head_dim = 270_000, 8, 64
    assert num_blocks * num_heads * 16 * head_dim > 2**31
    kernels = TritonKernels(CPU, torch.float16)
    caches = kernels.new_kv_cache(num_blocks, 16, num_heads, head_dim)
    metadata = build_attention_metadata([[num_blocks - 1, 3]], [0, 20], [20], 16)
    key, value = torch.randn(2, 20, num_heads, head_dim).half()
    kernels.store_kv(key, value, *caches, metadata.slots)
    output = kernels.attention(torch.randn(20, num_heads, head_dim), *caches, metadata, 0.1, 1)
    assert torch.equal(output, value.float())


INVARIANT = AttentionOptions(tiles=SMALL_TILES, fixed_chunk_len=64, sharing_min_len=32, sharing_break_even=0.0)


def random_sequences(seed: int) -> list[tuple[object, ...]]:
    """Some below others in a tree, with one new token, a few or many."""
    rng = random.Random(seed)
    sequences: list[tuple[object, ...]] = []
    for _ in range(5):
        runs = [("root", 4), ("twig", 3), ("leaf", 5)][: rng.randrange(4)]
        num_shared = 16 * sum(count for _, count in runs)
        num_rows = rng.choice([1, 1, 3, 40, 70])
        sequences.append((num_shared + num_rows + rng.randrange(80), num_rows, *runs))
    return sequences


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.usefixtures("products_by_row")
def test_bits_do_not_depend_on_the_batch(make_step, seed: int) -> None:
    """Alone or together, decoded or in a chunk, with a shared prefix or without: the same bits, and right ones."""
    heads = (1, 2, 32)
    kernels = TritonKernels(CPU, options=INVARIANT)
    together = make_step(random_sequences(seed), heads)
    output = together.attend(kernels, 0.3)
    assert_near(output, together.expected(0.3))
    rng = random.Random(seed)
    for seq_idx, context_len in enumerate(together.metadata.context_lens):
        first, end = together.metadata.query_starts[seq_idx : seq_idx + 2]
        for row in {end - 1, rng.randrange(first, end)}:
            seen = context_len - (end - row) + 1
            alone = make_step([(seen, 1)], heads)
            same = type(alone)(
                alone.metadata,
                [together.keys[seq_idx][:seen]],
                [together.values[seq_idx][:seen]],
                together.query[row : row + 1],
            )
            assert torch.equal(same.attend(kernels, 0.3)[0], output[row]), (seq_idx, row)


@pytest.mark.usefixtures("products_by_row")
def test_without_fixed_chunks_bits_do_depend_on_the_batch(make_step) -> None:
    """Or the test above would show nothing."""
    kernels = TritonKernels(CPU, options=CUT_UP)
    together, alone = make_step(TREE, (1, 2, 32)), make_step([(100, 1)], (1, 2, 32))
    same = type(alone)(alone.metadata, together.keys[:1], together.values[:1], together.query[:1])
    assert not torch.equal(same.attend(kernels, 0.3)[0], together.attend(kernels, 0.3)[0])


def test_steps_of_a_captured_size_use_the_same_memory(make_step) -> None:
    """Plans of several steps through one set of buffers that are larger than any of them."""
    heads, shape = (1, 2, 32), HeadShape(2, 1, 32)
    kernels = TritonKernels(CPU, options=CUT_UP)
    buffers = PlanBuffers(PlanCapacity(5, 40, 200, (24, 24), 60), shape, CPU)
    places = [tensor.data_ptr() for tensor in (buffers.plan.positions, buffers.plan.rows, *buffers.plan.items)]
    for sequences in (TREE[:3], [(9, 1)] * 5, [(200, 1, ("root", 4)), (90, 1, ("root", 4)), (3, 1)]):
        step = make_step(sequences, heads)
        expected = step.attend(kernels, 0.3)
        prepared = kernels.load_attention(step.metadata, shape, buffers)
        kernels.prepare_attention = lambda metadata, prepared=prepared: prepared  # type: ignore[method-assign]
        assert torch.equal(step.attend(kernels, 0.3), expected)
        del kernels.prepare_attention  # type: ignore[method-assign]
    assert places == [tensor.data_ptr() for tensor in (buffers.plan.positions, buffers.plan.rows, *buffers.plan.items)]
