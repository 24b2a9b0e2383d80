"""Part 6: the ops that only move memory, as shares of the bandwidth of a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ramet.kernels.triton import argmax
from ramet.kernels.triton.kernels import TritonKernels

from .bench import Bench
from .results import Record
from .settings import BLOCK_SIZE

GOAL = 0.8


@dataclass(frozen=True)
class MemoryOp:
    """Attributes:
    num_bytes: read and written by a call at least.
    make: a call on memory of its own; takes a seed.
    """

    name: str
    num_bytes: int
    make: Callable[[int], Callable[[], object]]


def measure_elementwise(bench: Bench, record: Record) -> None:
    kernels = TritonKernels(bench.device, bench.dtype)
    for op in record.in_time(memory_ops(bench, kernels), seconds_each=0.5):
        with record.guard(op.name), torch.inference_mode():
            calls = [op.make(seed) for seed in range(bench.timer.num_rotated(op.num_bytes))]
            milliseconds = bench.timer.median_ms(calls)
            bandwidth = op.num_bytes / milliseconds * 1e3
            share = bandwidth / bench.ceilings.copy if bench.ceilings.copy else None
            record.row(op=op.name, mb=op.num_bytes / 1e6, ms=milliseconds, tb_s=bandwidth / 1e12, share=share)
            if share is not None:
                record.target(f"{op.name}: share of the bandwidth of a copy", share, GOAL)
            del calls
        bench.free_memory()


def memory_ops(bench: Bench, kernels: TritonKernels) -> list[MemoryOp]:
    """Every op at the sizes of a large step of an 8B model."""
    settings, itemsize = bench.settings, bench.dtype.itemsize
    rows, hidden, inner = settings.num_rows, settings.hidden_size, settings.intermediate_size
    heads = settings.heads
    all_heads = heads.num_heads + 2 * heads.num_kv_heads
    half = heads.head_dim // 2
    num_slots = -(-rows // BLOCK_SIZE) * BLOCK_SIZE
    slots = torch.randperm(num_slots, generator=bench.generator(5), device=bench.device)[:rows]
    qkv_bytes = rows * all_heads * heads.head_dim * itemsize
    kv_bytes = rows * 2 * heads.num_kv_heads * heads.head_dim * itemsize

    def caches() -> tuple[Tensor, Tensor]:
        return kernels.new_kv_cache(num_slots // BLOCK_SIZE, BLOCK_SIZE, heads.num_kv_heads, heads.head_dim)

    def rms_norm(seed: int) -> Callable[[], object]:
        return partial(kernels.rms_norm, bench.randn(rows, hidden, seed=seed), bench.randn(hidden), 1e-5)

    def add_rms_norm(seed: int) -> Callable[[], object]:
        x, residual = bench.randn(2, rows, hidden, seed=seed)
        return partial(kernels.add_rms_norm, x, residual, bench.randn(hidden), 1e-5)

    def silu_mul(seed: int) -> Callable[[], object]:
        return partial(kernels.silu_mul, bench.randn(rows, 2 * inner, seed=seed))

    def rotary_store(seed: int) -> Callable[[], object]:
        qkv = bench.randn(rows, all_heads, heads.head_dim, seed=seed)
        cos, sin = bench.randn(2, rows, half, seed=seed, dtype=torch.float32)
        return partial(kernels.rotary_store, qkv, heads.num_kv_heads, cos, sin, *caches(), slots)

    def store_kv(seed: int) -> Callable[[], object]:
        key, value = bench.randn(2, rows, heads.num_kv_heads, heads.head_dim, seed=seed)
        return partial(kernels.store_kv, key, value, *caches(), slots)

    def find_argmax(seed: int) -> Callable[[], object]:
        logits = bench.randn(settings.num_logit_rows, settings.vocab_size, seed=seed, dtype=torch.float32)
        return partial(argmax.argmax, logits)

    return [
        MemoryOp("rms_norm", 2 * rows * hidden * itemsize, rms_norm),
        MemoryOp("add_rms_norm", 4 * rows * hidden * itemsize, add_rms_norm),
        MemoryOp("silu_mul", 3 * rows * inner * itemsize, silu_mul),
        MemoryOp("rotary_store", 2 * qkv_bytes + 2 * rows * half * 4, rotary_store),
        MemoryOp("store_kv", 2 * kv_bytes, store_kv),
        MemoryOp("argmax", 4 * settings.num_logit_rows * settings.vocab_size, find_argmax),
    ]
