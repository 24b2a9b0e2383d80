"""Part 1: what the device can do at most. Every share that is reported later is a share of these."""

from __future__ import annotations

from functools import partial

import torch

from .bench import Bench
from .results import Record


def measure_ceilings(bench: Bench, record: Record) -> None:
    """A copy far larger than the cache, and a product of large random matrices. Sets `bench.ceilings`."""
    with record.guard("copy"), torch.inference_mode():
        source = bench.randn(bench.settings.copy_bytes // bench.dtype.itemsize)
        target = torch.empty_like(source)
        milliseconds = bench.timer.median_ms([partial(target.copy_, source)])
        bench.ceilings.copy = 2 * bench.settings.copy_bytes / milliseconds * 1e3
        record.row(
            what="copy", size=f"{bench.settings.copy_bytes:,} bytes", ms=milliseconds, tb_s=bench.ceilings.copy / 1e12
        )
        del source, target
    with record.guard("matmul"), torch.inference_mode():
        size = bench.settings.matmul_size
        num_pairs = bench.timer.num_rotated(2 * size * size * bench.dtype.itemsize)
        pairs = [(bench.randn(size, size, seed=idx), bench.randn(size, size, seed=~idx)) for idx in range(num_pairs)]
        milliseconds = bench.timer.median_ms([partial(torch.mm, *pair) for pair in pairs])
        bench.ceilings.matmul = 2 * size**3 / milliseconds * 1e3
        record.row(what="matmul", size=f"{size:,} squared", ms=milliseconds, tflop_s=bench.ceilings.matmul / 1e12)
    bench.free_memory()
