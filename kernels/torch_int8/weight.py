"""Int8Weight: a matrix as int8 with one scale a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .quantize import quantize_rows

CHUNK_VALUES = 1 << 20
"""Values quantised at a time: the temporaries stay far below the size of a large matrix."""


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """Implements `interface.LinearWeight`.

    Attributes:
        values: int8 [N, K]; row n of the matrix is about values[n] * scales[n].
        scales: fp32 [N].
        dtype: of the matrix it was made from, and of rows looked up in it.
    """

    values: Tensor
    scales: Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


def quantize_weight(weight: Tensor, num_levels: int) -> Int8Weight:
    """Quantise a matrix [N, K] to integers -num_levels .. num_levels. Cost: a few passes over it."""
    assert weight.shape[1] > 1, "int_mm takes no matrix of one column"
    values = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(weight.shape[0])
    step = max(1, CHUNK_VALUES // weight.shape[1])
    for start in range(0, weight.shape[0], step):
        rows = slice(start, start + step)
        quantized, row_scales = quantize_rows(weight[rows].float(), num_levels)
        values[rows] = quantized
        scales[rows] = row_scales[:, 0]
    return Int8Weight(values, scales, weight.dtype)


def lookup_rows(row_ids: Tensor, weight: Int8Weight) -> Tensor:
    """Rows [T, K] of the matrix, within half a level of what they were; row_ids int64 [T]."""
    rows = weight.values[row_ids].float()
    return rows.mul_(weight.scales[row_ids][:, None]).to(weight.dtype)
