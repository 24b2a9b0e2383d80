"""Lazy zeros: memory is reserved, not used, until it is written."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from ramet.kernels.torch_cpu.kv_storage import lazy_zeros

CPU = torch.device("cpu")
STATUS = Path("/proc/self/status")


def resident_mib() -> float:
    fields = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


@pytest.mark.skipif(not STATUS.exists(), reason="reads the resident size from /proc, which only Linux has")
def test_a_pool_of_8_gib_costs_memory_only_where_it_is_written() -> None:
    before = resident_mib()
    pool = lazy_zeros((8, 1 << 28), torch.float32, CPU)
    assert resident_mib() - before < 16
    pool[3, 1000 : 1000 + (32 << 18)] = 1.0
    assert 32 - 1 < resident_mib() - before < 64
    del pool
    gc.collect()
    assert resident_mib() - before < 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 7), (1,), (0, 4)])
def test_zeros_of_any_shape_and_type(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    zeros = lazy_zeros(shape, dtype, CPU)
    assert zeros.shape == shape
    assert zeros.dtype == dtype
    assert not zeros.any()
    zeros += 1
    assert zeros.all()
