"""Job: what this machine can do at most, as far as torch reaches it: bytes read and products computed a second.

A floor under the time of a step follows from each. The probes run between the engines, so that they share the engines'
luck with the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

MIB = 1 << 20
DRAM_BUFFER_BYTES = 1024 * MIB
INT8_SIZE = 2048


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Options: `threads`, `weight_bytes`, `seconds` a probe. Bytes and operations a second, the best."""
    torch.set_num_threads(options["threads"])
    seconds = options["seconds"]
    return {
        "dram_bytes_per_second": read_bandwidth(DRAM_BUFFER_BYTES, seconds),
        "weights_bytes_per_second": read_bandwidth(options["weight_bytes"], seconds),
        "int8_ops_per_second": int8_rate(seconds),
        "fp32_ops_per_second": fp32_rate(seconds),
    }


def read_bandwidth(num_bytes: int, seconds: float) -> float:
    """Bytes a second of summing a buffer again and again: from its caches if it fits them, else from memory."""
    buffer = torch.ones(num_bytes // 4)
    return num_bytes / _best_seconds(buffer.sum, seconds)


def int8_rate(seconds: float) -> float:
    """Operations a second of `torch._int_mm` on large squares; a multiplication and an addition are two."""
    left = torch.randint(-128, 128, (INT8_SIZE, INT8_SIZE), dtype=torch.int8)
    right = torch.randint(-128, 128, (INT8_SIZE, INT8_SIZE), dtype=torch.int8)
    return 2 * INT8_SIZE**3 / _best_seconds(lambda: torch._int_mm(left, right), seconds)


def fp32_rate(seconds: float) -> float:
    """The same of an fp32 product."""
    left, right = torch.randn(INT8_SIZE, INT8_SIZE), torch.randn(INT8_SIZE, INT8_SIZE)
    return 2 * INT8_SIZE**3 / _best_seconds(lambda: left @ right, seconds)


def _best_seconds(work: Callable[[], object], seconds: float) -> float:
    """The shortest of the runs that fit into so many seconds, of three at least."""
    work()
    durations: list[float] = []
    end = time.perf_counter() + seconds
    while len(durations) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return min(durations)
