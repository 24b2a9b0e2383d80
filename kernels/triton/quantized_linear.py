"""Products with integer weights that are widened on their way: y = x (codes - zeros)^T * scales + bias.

    codes [N, K]                              x [T, K]
    +--------------------+                    +--------------------+
    |                    |                    |--> BLOCK_K -->     | BLOCK_M rows
    |--> BLOCK_K -->     | BLOCK_N outputs    +--------------------+
    |                    |
    +--------------------+

A program owns BLOCK_M x BLOCK_N sums and walks along the inputs. Programs of the same outputs follow one another, so
that their weights come from the cache. Levels (code - zero) are integers up to 256, exact in every dtype that is
multiplied; the scale of a group is applied to the sums of its products, in fp32. So no weight is ever rounded. A tile
lies within one group, and groups divide K: no mask along the inputs.

Bound by memory for few rows: K * N * bits / 8 bytes, which is the point. With many rows the matrix unit decides, and a
plain product is faster (`MAX_ROWS`): then the weight is dequantised first, by `dequantize`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantized import product
from ..quantized.matrix import BLOCK_LEN, QuantizedMatrix
from .launch import IS_INTERPRETED, KernelCall, dot_dtype, next_power_of_2, with_packed_rows

MAX_ROWS = 256
"""Rows up to which weights are widened in the product. An estimate from bytes, to be measured: dequantising first costs
a step 5 bytes a weight (4.5 with 4 bits), whatever the rows; widening costs what is stored, and a slower product."""

_MAX_BLOCK_M = 64
_MAX_BLOCK_K = 128
_BLOCK_N, _NARROW_BLOCK_N, _NARROW_OUTPUTS = 32, 16, 4096
"""Outputs of a program; fewer where a matrix has few, so that there are programs for all multiprocessors."""

_INTERPRETED_BLOCK_N = 4096
_DEQUANTIZE_TILE = 4096
_HALF = BLOCK_LEN // 2


@triton.jit(do_not_specialize=["num_rows"])
def quantized_linear_kernel(
    x,
    codes,
    scales,
    zeros,
    bias,
    output,
    num_rows,
    row_stride,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    GROUP_LEN: tl.constexpr,
    BITS: tl.constexpr,
    DOT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HALF: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column, is_row = column < NUM_OUTPUTS, row < num_rows
    lines = x + row.to(tl.int64)[:, None] * row_stride
    levels_start = codes + column.to(tl.int64)[:, None] * (NUM_INPUTS * BITS // 8)
    group_start = column.to(tl.int64) * (NUM_INPUTS // GROUP_LEN)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, NUM_INPUTS, BLOCK_K):
        group = group_start + start // GROUP_LEN
        scale = tl.load(scales + group, mask=is_column, other=0.0).to(tl.float32)
        zero = tl.zeros((BLOCK_N,), tl.float32)
        if zeros is not None:
            zero = tl.load(zeros + group, mask=is_column, other=0).to(tl.float32)
        if BITS == 8:
            k = start + tl.arange(0, BLOCK_K)
            inputs = tl.load(lines + k[None, :], mask=is_row[:, None], other=0.0).to(DOT)
            level = tl.load(levels_start + k[None, :], mask=is_column[:, None], other=0).to(tl.float32)
            levels = (level - zero[:, None]).to(DOT)
            part = tl.dot(inputs, tl.trans(levels), input_precision="ieee")
        else:
            byte = tl.arange(0, BLOCK_K // 2)
            k = start + (byte // HALF) * (2 * HALF) + byte % HALF
            low_inputs = tl.load(lines + k[None, :], mask=is_row[:, None], other=0.0).to(DOT)
            high_inputs = tl.load(lines + (k + HALF)[None, :], mask=is_row[:, None], other=0.0).to(DOT)
            pair = tl.load(levels_start + (start // 2 + byte)[None, :], mask=is_column[:, None], other=0).to(tl.int32)
            low = ((pair & 15).to(tl.float32) - zero[:, None]).to(DOT)
            high = ((pair >> 4).to(tl.float32) - zero[:, None]).to(DOT)
            part = tl.dot(low_inputs, tl.trans(low), input_precision="ieee")
            part = tl.dot(high_inputs, tl.trans(high), part, input_precision="ieee")
        sums += part * scale[None, :]
    if bias is not None:
        sums += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    target = output + row.to(tl.int64)[:, None] * NUM_OUTPUTS + column[None, :]
    tl.store(target, sums.to(output.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def dequantize_kernel(
    codes,
    scales,
    zeros,
    output,
    num_values,
    GROUP_LEN: tl.constexpr,
    BITS: tl.constexpr,
    TILE: tl.constexpr,
    HALF: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    is_value = at < num_values
    group = at // GROUP_LEN
    scale = tl.load(scales + group, mask=is_value, other=0.0).to(tl.float32)
    if BITS == 8:
        level = tl.load(codes + at, mask=is_value, other=0).to(tl.float32)
    else:
        byte = (at // (2 * HALF)) * HALF + at % HALF
        pair = tl.load(codes + byte, mask=is_value, other=0).to(tl.int32)
        level = ((pair >> tl.where(at % (2 * HALF) < HALF, 0, 4)) & 15).to(tl.float32)
    if zeros is not None:
        level -= tl.load(zeros + group, mask=is_value, other=0).to(tl.float32)
    tl.store(output + at, (level * scale).to(output.dtype.element_ty), mask=is_value)


def quantized_linear(x: Tensor, weight: QuantizedMatrix, bias: Tensor | None) -> Tensor:
    """x [T, K] times the weight [N, K] transposed, plus bias [N]: [T, N], in the dtype of x."""
    if x.shape[0] > MAX_ROWS:
        return product.quantized_linear(x, weight, bias, dequantize=dequantize)
    output = x.new_empty((x.shape[0], weight.shape[0]))
    quantized_linear_call(with_packed_rows(x), weight, bias, output).run()
    return output


def quantized_linear_call(x: Tensor, weight: QuantizedMatrix, bias: Tensor | None, output: Tensor) -> KernelCall:
    """Writes `output` [T, N]."""
    num_rows, (num_outputs, num_inputs) = x.shape[0], weight.shape
    block_m = max(16, next_power_of_2(num_rows) if IS_INTERPRETED else min(_MAX_BLOCK_M, next_power_of_2(num_rows)))
    block_n = _BLOCK_N if num_outputs > _NARROW_OUTPUTS else _NARROW_BLOCK_N
    if IS_INTERPRETED:
        block_n = min(_INTERPRETED_BLOCK_N, next_power_of_2(num_outputs))
    return KernelCall(
        quantized_linear_kernel,
        (triton.cdiv(num_rows, block_m), triton.cdiv(num_outputs, block_n)),
        (x, weight.codes, weight.scales, weight.zeros, bias, output, num_rows, x.stride(0)),
        {
            "NUM_OUTPUTS": num_outputs,
            "NUM_INPUTS": num_inputs,
            "GROUP_LEN": weight.group_len,
            "BITS": weight.bits,
            "DOT": dot_dtype(x.dtype),
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": min(_MAX_BLOCK_K, weight.group_len & -weight.group_len),
            "HALF": _HALF,
        },
        num_stages=4,
    )


def dequantize(weight: QuantizedMatrix, dtype: torch.dtype) -> Tensor:
    """The matrix [N, K]: `QuantizedMatrix.dequantize` in one pass."""
    output = torch.empty(tuple(weight.shape), dtype=dtype, device=weight.codes.device)
    dequantize_call(weight, output).run()
    return output


def dequantize_call(weight: QuantizedMatrix, output: Tensor) -> KernelCall:
    """Writes `output` [N, K]."""
    num_values = output.numel()
    tile = next_power_of_2(num_values) if IS_INTERPRETED else _DEQUANTIZE_TILE
    return KernelCall(
        dequantize_kernel,
        (triton.cdiv(num_values, tile),),
        (weight.codes, weight.scales, weight.zeros, output, num_values),
        {
            "GROUP_LEN": weight.group_len,
            "BITS": weight.bits,
            "TILE": tile,
            "HALF": _HALF,
        },
        num_warps=8,
    )
