"""RMS norm, with or without the residual added first, and layer norm.

    rms_norm      y = x / sqrt(mean(x^2) + eps) * weight                       (Zhang & Sennrich 2019)
    add_rms_norm  s = x + residual;  y = rms_norm(s);  both are returned
    layer_norm    y = (x - mean) / sqrt(variance + eps) * weight + bias        (Ba et al. 2016)

A program owns ROWS whole rows and keeps them in registers, so each element is read and written once:

              W columns, padded to a power of 2
            +----------------------------------+
    ROWS    | program 0                        |   ROWS > 1 only for narrow rows, such as the heads of a
            +----------------------------------+   query norm, which would leave most of a program idle
    ROWS    | program 1                        |
            +----------------------------------+

All sums are fp32. Memory-bound: 2 reads or writes an element (4 with the residual).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import KernelCall, next_power_of_2, row_strides, rows_in_tile, tile_rows, with_packed_rows


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x, residual, weight, output, summed, num_rows, rows_in_group, group_stride, row_stride, eps,
    WIDTH: tl.constexpr, PADDED_WIDTH: tl.constexpr, ROWS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """`residual`, `summed` and `output` are packed; `x` is read by its strides."""
    row, offset, is_row = tile_rows(num_rows, rows_in_group, group_stride, row_stride, ROWS)
    column = tl.arange(0, PADDED_WIDTH)[None, :]
    mask = is_row[:, None] & (column < WIDTH)
    values = tl.load(x + offset[:, None] + column, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + row[:, None] * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(summed + row[:, None] * WIDTH + column, values.to(summed.dtype.element_ty), mask=mask)
    mean_square = tl.sum(values * values, axis=1)[:, None] / WIDTH
    scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    normed = values * tl.rsqrt(mean_square + eps) * scale
    tl.store(output + row[:, None] * WIDTH + column, normed.to(output.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def layer_norm_kernel(
    x, weight, bias, output, num_rows, rows_in_group, group_stride, row_stride, eps,
    WIDTH: tl.constexpr, PADDED_WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, offset, is_row = tile_rows(num_rows, rows_in_group, group_stride, row_stride, ROWS)
    column = tl.arange(0, PADDED_WIDTH)[None, :]
    is_column = column < WIDTH
    mask = is_row[:, None] & is_column
    values = tl.load(x + offset[:, None] + column, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=1)[:, None] / WIDTH
    centred = tl.where(mask, values - mean, 0.0)
    variance = tl.sum(centred * centred, axis=1)[:, None] / WIDTH
    scale = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    shift = tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    normed = centred * tl.rsqrt(variance + eps) * scale + shift
    tl.store(output + row[:, None] * WIDTH + column, normed.to(output.dtype.element_ty), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `interface.Kernels.rms_norm`; x [T, W] or [T, H, W]."""
    x = with_packed_rows(x)
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_call(x, None, weight, eps, output, None).run()
    return output


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual) of [T, W]; the sum is normed before it is rounded to its dtype."""
    x, residual = with_packed_rows(x), residual.contiguous()
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    summed = torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    rms_norm_call(x, residual, weight, eps, output, summed).run()
    return output, summed


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """See `interface.Kernels.layer_norm`."""
    x = with_packed_rows(x)
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    layer_norm_call(x, weight, bias, eps, output).run()
    return output


def rms_norm_call(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, output: Tensor, summed: Tensor | None
) -> KernelCall:
    """Writes `output`, and `summed` where there is a residual."""
    num_rows, width, tile = _shape_of(x)
    return KernelCall(
        rms_norm_kernel,
        (triton.cdiv(num_rows, tile["ROWS"]),),
        (x, residual, weight, output, summed, num_rows, *row_strides(x), eps),
        {"WIDTH": width, **tile, "HAS_RESIDUAL": residual is not None},
        num_warps=_num_warps(tile),
    )


def layer_norm_call(x: Tensor, weight: Tensor, bias: Tensor, eps: float, output: Tensor) -> KernelCall:
    """Writes `output`."""
    num_rows, width, tile = _shape_of(x)
    return KernelCall(
        layer_norm_kernel,
        (triton.cdiv(num_rows, tile["ROWS"]),),
        (x, weight, bias, output, num_rows, *row_strides(x), eps),
        {"WIDTH": width, **tile},
        num_warps=_num_warps(tile),
    )


def _shape_of(x: Tensor) -> tuple[int, int, dict[str, int]]:
    width = x.shape[-1]
    num_rows = x.numel() // width
    padded = next_power_of_2(width)
    return num_rows, width, {"PADDED_WIDTH": padded, "ROWS": rows_in_tile(num_rows, padded)}


def _num_warps(tile: dict[str, int]) -> int:
    """8 elements a thread or so, and at most 16 warps."""
    return min(16, max(4, tile["PADDED_WIDTH"] * tile["ROWS"] // 512))
