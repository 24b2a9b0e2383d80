"""The gated activation: silu(gate) * up, where silu(x) = x / (1 + e^-x) (Shazeer 2020).

    gate_up [T, 2I]:   | gate, I columns | up, I columns |     ->     [T, I]
                         ^BLOCK            ^BLOCK                       ^BLOCK

A program owns BLOCK columns of ROWS rows. Memory-bound: 3 reads or writes an element of the output.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import KernelCall, next_power_of_2, rows_in_tile, with_packed_rows

_MAX_BLOCK = 1024


@triton.jit(do_not_specialize=["num_rows"])
def silu_mul_kernel(
    gate_up, output, num_rows, row_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = (row < num_rows) & (column < WIDTH)
    start = gate_up + row * row_stride
    gate = tl.load(start + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(start + WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    decay = tl.exp(-tl.abs(gate))  # at most 1, so that nothing overflows
    activated = tl.where(gate >= 0.0, gate, gate * decay) / (1.0 + decay) * up
    tl.store(output + row * WIDTH + column, activated.to(output.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `interface.Kernels.silu_mul`."""
    gate_up = with_packed_rows(gate_up)
    output = torch.empty((gate_up.shape[0], gate_up.shape[1] // 2), dtype=gate_up.dtype, device=gate_up.device)
    silu_mul_call(gate_up, output).run()
    return output


def silu_mul_call(gate_up: Tensor, output: Tensor) -> KernelCall:
    """Writes `output` [T, I]."""
    num_rows, width = output.shape
    block = min(_MAX_BLOCK, next_power_of_2(width))
    rows = rows_in_tile(num_rows, block)
    return KernelCall(
        silu_mul_kernel,
        (triton.cdiv(num_rows, rows), triton.cdiv(width, block)),
        (gate_up, output, num_rows, gate_up.stride(0)),
        {"WIDTH": width, "BLOCK": block, "ROWS": rows},
    )
