"""Matrix product of 16-bit rows with an int8 weight: integer sums, which are exact, then one scale a row and a column.

A row's result therefore does not depend on how many rows are computed with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .capability import has_amx
from .int_mm import int_mm
from .quantize import HIGH_UNIT, split_rows
from .weight import Int8Weight

FEW_ROWS = 16
"""Up to so many rows, oneDNN's code for AMX is faster (by a quarter to a third) with the weight on the left."""

CHUNK_ROWS = 128
"""Rows at a time: the sums of more would leave the processor's cache before they are scaled."""


def int8_linear(x: Tensor, weight: Int8Weight, bias: Tensor | None) -> Tensor:
    """x [T, K] times the weight [N, K] transposed, plus bias [N]: [T, N] in the dtype of x."""
    if x.shape[0] <= CHUNK_ROWS:
        return _product(x.float(), weight, bias).to(x.dtype)
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype)
    for start in range(0, x.shape[0], CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        out[rows] = _product(x[rows].float(), weight, bias)
    return out


def _product(x: Tensor, weight: Int8Weight, bias: Tensor | None) -> Tensor:
    num_rows = x.shape[0]
    halves, row_scales = split_rows(x)
    sums = _int_sums(halves, weight.values).float()
    product = sums[num_rows:].add_(sums[:num_rows], alpha=HIGH_UNIT).mul_(weight.scales).mul_(row_scales)
    return product if bias is None else product.add_(bias)


def _int_sums(rows: Tensor, weight: Tensor) -> Tensor:
    """Int8 [R, K] times int8 [N, K] transposed: int32 [R, N], exact as long as the weight keeps to its levels.

    All forms give the same integers. Without AMX, one row at a time is twice as fast as two together."""
    num_rows = rows.shape[0]
    if num_rows <= FEW_ROWS and has_amx():
        return int_mm(weight, rows.t()).t()
    if num_rows == 2:
        return torch.cat((int_mm(rows[:1], weight.t()), int_mm(rows[1:], weight.t())))
    return int_mm(rows, weight.t())
