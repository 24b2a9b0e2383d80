"""The one call into torch's int8 product, which it does not export by a public name."""

from __future__ import annotations

import torch
from torch import Tensor


def int_mm(left: Tensor, right: Tensor) -> Tensor:
    """Int8 [M, K] times int8 [K, N] of any strides: int32 [M, N]. K must be more than 1: torch misreads strides there.

    Exact over all of int8 where the processor adds products in 32 bits (see `capability.py`)."""
    return torch._int_mm(left, right)  # pyright: ignore[reportPrivateImportUsage]
