"""Put together the parts of a row's attention that several items computed.

    weight_i = 2^(log_i - max log)        out = sum weight_i * part_i / sum weight_i      (Ye et al. 2024, cascade)

where log_i is the log2 of a part's sum of exponentials. A program owns HEADS heads of one row and walks its parts:

    row_ranges:   row 0 | row 1 | row 2 ...
    parts:        [0 1] | []    | [2 3 4]          [part, Hq, D] fp32; a row without parts was written by its item

The order of the parts is that of the row's keys, and each row is by itself: the same bits in any batch. A part of
keys that the row does not see has log -inf and adds zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import KernelCall, next_power_of_2
from .plan_buffers import LoadedPlan

_TILE = 512
"""Elements of one program, or so."""


@triton.jit
def merge_parts_kernel(
    partial_out, partial_log, row_ranges, output, output_strides,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first, end = tl.load(row_ranges + row).to(tl.int32), tl.load(row_ranges + row + 1).to(tl.int32)
    if first == end:
        return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dim = tl.arange(0, PADDED_DIM)[None, :]
    is_head = head < NUM_HEADS
    mask = is_head[:, None] & (dim < DIM)
    peak = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    mixed = tl.zeros((HEADS, PADDED_DIM), tl.float32)
    for part in tl.range(first, end):
        place = part * NUM_HEADS + head.to(tl.int64)
        log = tl.load(partial_log + place, mask=is_head, other=0.0).to(tl.float32)
        part_out = tl.load(partial_out + place[:, None] * DIM + dim, mask=mask, other=0.0).to(tl.float32)
        new_peak = tl.maximum(peak, log)
        finite_peak = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        shrink, weight = tl.exp2(peak - finite_peak), tl.exp2(log - finite_peak)
        total = total * shrink + weight
        mixed = mixed * shrink[:, None] + part_out * weight[:, None]
        peak = new_peak
    target = output + row * output_strides[0] + head[:, None] * output_strides[1] + dim
    tl.store(target, (mixed / total[:, None]).to(output.dtype.element_ty), mask=mask)


def merge_parts_call(plan: LoadedPlan, output: Tensor) -> KernelCall:
    """Writes the rows of `output` [T, Hq, D] that have parts."""
    num_rows, num_heads, head_dim = output.shape
    padded = next_power_of_2(head_dim)
    heads = max(1, min(next_power_of_2(num_heads), _TILE // padded))
    return KernelCall(
        merge_parts_kernel,
        (num_rows, triton.cdiv(num_heads, heads)),
        (plan.partial_out, plan.partial_log, plan.row_ranges, output, (output.stride(0), output.stride(1))),
        {"NUM_HEADS": num_heads, "HEADS": heads, "DIM": head_dim, "PADDED_DIM": padded},
    )
