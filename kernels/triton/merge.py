"""Put together the parts of a row's attention that several items computed.

    weight_i = 2^(log_i - max log)        out = sum weight_i * part_i / sum weight_i      (Ye et al. 2024, cascade)

where log_i is the log2 of a part's sum of exponentials. A program owns HEADS heads of one row and takes PARTS of its
parts at a time: one after another, each would wait for memory, and a long context that decodes alone has dozens.

    row_ranges:   row 0 | row 1 | row 2 ...
    parts:        [0 1] | []    | [2 3 4]          [part, Hq, D] fp32; a row without parts was written by its item

Groups are counted from the row's own first part, in the order of its keys, and each row is by itself: the same bits in
any batch. A part of keys that the row does not see has log -inf and adds zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import KernelCall, next_power_of_2
from .plan_buffers import LoadedPlan

_PARTS = 8
_TILE = 4096
"""Elements that a program reads at a time, at most or so."""


@triton.jit
def merge_parts_kernel(
    partial_out, partial_log, row_ranges, output, output_strides,
    NUM_HEADS: tl.constexpr, HEADS: tl.constexpr, PARTS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first, end = tl.load(row_ranges + row).to(tl.int32), tl.load(row_ranges + row + 1).to(tl.int32)
    if first == end:
        return
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dim = tl.arange(0, PADDED_DIM)
    is_head = head < NUM_HEADS
    is_element = is_head[:, None] & (dim < DIM)[None, :]
    peak = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    mixed = tl.zeros((HEADS, PADDED_DIM), tl.float32)
    for start in tl.range(first, end, PARTS):
        part = start + tl.arange(0, PARTS)
        is_part = part < end
        place = part.to(tl.int64)[:, None] * NUM_HEADS + head[None, :]
        log_mask = is_part[:, None] & is_head[None, :]
        log = tl.load(partial_log + place, mask=log_mask, other=float("-inf")).to(tl.float32)
        out_mask = is_part[:, None, None] & is_element[None, :, :]
        source = partial_out + place[:, :, None] * DIM + dim[None, None, :]
        part_out = tl.load(source, mask=out_mask, other=0.0).to(tl.float32)
        new_peak = tl.maximum(peak, tl.max(log, axis=0))
        finite_peak = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        shrink, weight = tl.exp2(peak - finite_peak), tl.exp2(log - finite_peak[None, :])
        total = total * shrink + tl.sum(weight, axis=0)
        mixed = mixed * shrink[:, None] + tl.sum(part_out * weight[:, :, None], axis=0)
        peak = new_peak
    divisor = tl.where(total > 0.0, total, 1.0)
    target = output + row * output_strides[0] + head[:, None] * output_strides[1] + dim[None, :]
    tl.store(target, (mixed / divisor[:, None]).to(output.dtype.element_ty), mask=is_element)


def merge_parts_call(plan: LoadedPlan, output: Tensor) -> KernelCall:
    """Writes the rows of `output` [T, Hq, D] that have parts."""
    num_rows, num_heads, head_dim = output.shape
    padded = next_power_of_2(head_dim)
    heads = max(1, min(next_power_of_2(num_heads), _TILE // (_PARTS * padded)))
    return KernelCall(
        merge_parts_kernel,
        (num_rows, triton.cdiv(num_heads, heads)),
        (plan.partial_out, plan.partial_log, plan.row_ranges, output, (output.stride(0), output.stride(1))),
        {"NUM_HEADS": num_heads, "HEADS": heads, "PARTS": _PARTS, "DIM": head_dim, "PADDED_DIM": padded},
    )
