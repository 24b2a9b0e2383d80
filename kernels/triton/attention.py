"""Attention of work items: a list of query rows times a run of keys. Decodes, chunks of prompts and shared prefixes
are all items; `plan.py` makes them.

    softmax(q k^T * scale) v        over the keys a row sees, by running maxima and sums (FlashAttention: Dao 2023)

One program is one item with one key/value head. The query heads that read this head are packed beside the rows, so
that a decoding row fills more than one line of the matrix unit and keys are loaded once for all of them:

                      keys of the item: blocks of the pool, through `kv_blocks`
                        0          BLOCK_N       2 BLOCK_N          num_keys
    row 0, head 0     +------------+-------------+-------------+------+
    row 0, head 1     | all rows see all of these: no mask     | mask |      BLOCK_M lines = rows * GROUP_SIZE,
    row 1, head 0     | (where tiles are large and there is    |      |      the rest is padding
    row 1, head 1     |  no window)                            |      |
                      +------------+-------------+-------------+------+

Row r at position p sees keys at positions p - window + 1 .. p. Where an item is all that a row has, its result is
written to the output; where there are several, each writes an fp32 part and the log2 of its sum of weights, and
`merge.py` puts them together. An item without rows is padding of a captured graph and returns at once.

Every line's result depends on its own query and keys, BLOCK_M, BLOCK_N and the item's keys only, not on the other
lines: skipping a block that a line cannot see and masking it give the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .kv_cache import LARGEST_CODE, KVView
from .launch import KernelCall, dot_dtype, next_power_of_2
from .plan import ITEM_WIDTH
from .plan_buffers import LoadedPlan
from .tiles import Tile

LOG2_E = 1.4426950408889634


@triton.jit
def _load_keys(
    rows, scales, kv_blocks, first, num_keys, low, strides, scale_strides, DOT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    IS_MASKED: tl.constexpr, IS_QUANTISED: tl.constexpr,
):  # fmt: skip
    """Keys or values first .. first + BLOCK_N of an item, [BLOCK_N, PADDED_DIM], and their scales; 0 where masked."""
    key = first + tl.arange(0, BLOCK_N)
    dim = tl.arange(0, PADDED_DIM)
    is_key = (key >= low) & (key < num_keys)
    if IS_MASKED:
        block = tl.load(kv_blocks + key // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
    else:
        block = tl.load(kv_blocks + key // BLOCK_SIZE).to(tl.int64)
    slot = key % BLOCK_SIZE
    source = rows + (block * strides[0] + slot * strides[2])[:, None] + dim[None, :]
    if IS_MASKED:
        loaded = tl.load(source, mask=is_key[:, None] & (dim < DIM)[None, :], other=0.0).to(DOT)
    elif DIM == PADDED_DIM:
        loaded = tl.load(source).to(DOT)
    else:
        loaded = tl.load(source, mask=(dim < DIM)[None, :], other=0.0).to(DOT)
    scale = tl.full((BLOCK_N,), 1.0, tl.float32)
    if IS_QUANTISED:
        scale = tl.load(scales + block * scale_strides[0] + slot, mask=is_key, other=0.0).to(tl.float32)
    return loaded, scale


@triton.jit
def _attend(
    peak, total, mixed, query, position, key_rows, value_rows, key_scales, value_scales, kv_blocks,
    begin, end, first_position, num_keys, low, scale, window, strides, scale_strides,
    DOT: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    IS_MASKED: tl.constexpr, IS_QUANTISED: tl.constexpr, HAS_WINDOW: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Take keys begin .. end of an item into the running maximum, sum and mixture of the lines."""
    for first in tl.range(begin, end, BLOCK_N, num_stages=NUM_STAGES):
        keys, key_scale = _load_keys(
            key_rows, key_scales, kv_blocks, first, num_keys, low, strides, scale_strides, DOT,
            BLOCK_SIZE, BLOCK_N, DIM, PADDED_DIM, IS_MASKED, IS_QUANTISED,
        )  # fmt: skip
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        if IS_QUANTISED:
            scores *= key_scale[None, :]
        if IS_MASKED:
            key = first + tl.arange(0, BLOCK_N)
            distance = position[:, None] - (first_position + key)[None, :]
            is_seen = (distance >= 0) & (key < num_keys)[None, :]
            if HAS_WINDOW:
                is_seen &= distance < window
            scores = tl.where(is_seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        finite_peak = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        shrink = tl.exp2(peak - finite_peak)
        weights = tl.exp2(scores - finite_peak[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        values, value_scale = _load_keys(
            value_rows, value_scales, kv_blocks, first, num_keys, low, strides, scale_strides, DOT,
            BLOCK_SIZE, BLOCK_N, DIM, PADDED_DIM, IS_MASKED, IS_QUANTISED,
        )  # fmt: skip
        if IS_QUANTISED:
            weights *= value_scale[None, :]
        lowered = weights.to(DOT)
        mixed = tl.dot(lowered, values, mixed * shrink[:, None], input_precision="ieee")
        peak = new_peak
    return peak, total, mixed


@triton.jit
def _write(
    peak, total, mixed, is_line, row, head, target, output, partial_out, partial_log, output_strides,
    NUM_HEADS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
):  # fmt: skip
    """Write finished lines to the output, those of a row with several items to their parts."""
    dim = tl.arange(0, PADDED_DIM)[None, :]
    sees_any = total > 0.0
    divisor = tl.where(sees_any, total, 1.0)
    result = mixed / divisor[:, None]
    log = tl.where(sees_any, peak + tl.log2(divisor), float("-inf"))
    is_whole, is_part = is_line & (target < 0), is_line & (target >= 0)
    whole = output + (row * output_strides[0] + head * output_strides[1])[:, None] + dim
    tl.store(whole, result.to(output.dtype.element_ty), mask=is_whole[:, None] & (dim < DIM))
    part = target.to(tl.int64) * NUM_HEADS + head
    tl.store(partial_out + part[:, None] * DIM + dim, result, mask=is_part[:, None] & (dim < DIM))
    tl.store(partial_log + part, log, mask=is_part)


@triton.jit
def attend_items_kernel(
    query, key_rows, value_rows, key_scales, value_scales, output, partial_out, partial_log,
    items, rows, targets, kv_blocks, positions, scale, window,
    query_strides, output_strides, strides, scale_strides,
    NUM_HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr, ITEM_WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DOT: tl.constexpr, IS_QUANTISED: tl.constexpr, HAS_WINDOW: tl.constexpr, IS_SPLIT: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """IS_SPLIT: walk the keys that all lines see in a loop of their own, without a mask."""
    item = items + tl.program_id(0) * ITEM_WIDTH
    first_row, num_rows = tl.load(item).to(tl.int32), tl.load(item + 1).to(tl.int32)
    if num_rows == 0:
        return
    first_block, num_keys = tl.load(item + 2).to(tl.int32), tl.load(item + 3).to(tl.int32)
    first_position, part_idx = tl.load(item + 4).to(tl.int32), tl.load(item + 5).to(tl.int32)
    kv_head = tl.program_id(1).to(tl.int64)

    line = tl.arange(0, BLOCK_M)
    is_line = line // GROUP_SIZE < num_rows
    entry = first_row + line // GROUP_SIZE
    row = tl.load(rows + entry, mask=is_line, other=0).to(tl.int64)
    target = tl.load(targets + entry, mask=is_line, other=-1).to(tl.int32)
    target = tl.where(target < 0, target, target + part_idx)
    position = tl.load(positions + row, mask=is_line, other=-1).to(tl.int32)
    head = kv_head * GROUP_SIZE + line % GROUP_SIZE
    dim = tl.arange(0, PADDED_DIM)[None, :]
    source = query + (row * query_strides[0] + head * query_strides[1])[:, None] + dim
    lines = tl.load(source, mask=is_line[:, None] & (dim < DIM), other=0.0).to(DOT)

    key_rows += kv_head * strides[1]
    value_rows += kv_head * strides[1]
    if IS_QUANTISED:
        key_scales += kv_head * scale_strides[1]
        value_scales += kv_head * scale_strides[1]
    kv_blocks += first_block
    lowest = tl.min(tl.where(is_line, position, 0x7FFFFFFF), axis=0)
    low = 0
    begin = 0
    if HAS_WINDOW:
        low = tl.maximum(lowest - window + 1 - first_position, 0)
        begin = low // BLOCK_N * BLOCK_N
    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, PADDED_DIM), tl.float32)
    if IS_SPLIT:
        seen_by_all = tl.maximum(tl.minimum(num_keys, lowest + 1 - first_position), 0) // BLOCK_N * BLOCK_N
        peak, total, mixed = _attend(
            peak, total, mixed, lines, position, key_rows, value_rows, key_scales, value_scales, kv_blocks,
            0, seen_by_all, first_position, num_keys, 0, scale, window, strides, scale_strides,
            DOT, BLOCK_SIZE, BLOCK_N, DIM, PADDED_DIM, False, IS_QUANTISED, HAS_WINDOW, NUM_STAGES,
        )  # fmt: skip
        begin = seen_by_all
    peak, total, mixed = _attend(
        peak, total, mixed, lines, position, key_rows, value_rows, key_scales, value_scales, kv_blocks,
        begin, num_keys, first_position, num_keys, low, scale, window, strides, scale_strides,
        DOT, BLOCK_SIZE, BLOCK_N, DIM, PADDED_DIM, True, IS_QUANTISED, HAS_WINDOW, NUM_STAGES,
    )  # fmt: skip
    _write(peak, total, mixed, is_line, row, head, target, output, partial_out, partial_log, output_strides,
           NUM_HEADS, DIM, PADDED_DIM)  # fmt: skip


def attend_items_call(
    query: Tensor,
    key_view: KVView,
    value_view: KVView,
    output: Tensor,
    plan: LoadedPlan,
    tile_idx: int,
    tile: Tile,
    scale: float,
    sliding_window: int | None,
) -> KernelCall:
    """The items of one tile size; writes `output`, and the parts of the plan. Query rows are packed."""
    _, num_heads, head_dim = query.shape
    _, num_kv_heads, block_size, _ = key_view.rows.shape
    has_window = sliding_window is not None
    return KernelCall(
        attend_items_kernel,
        (plan.items[tile_idx].shape[0], num_kv_heads),
        (
            *(query, key_view.rows, value_view.rows, key_view.scales, value_view.scales),
            *(output, plan.partial_out, plan.partial_log, plan.items[tile_idx]),
            *(plan.rows, plan.targets, plan.kv_blocks, plan.positions),
            *(scale * LOG2_E, sliding_window or 0),
            *((query.stride(0), query.stride(1)), (output.stride(0), output.stride(1))),
            *(key_view.strides, key_view.scale_strides),
        ),
        {
            "NUM_HEADS": num_heads,
            "GROUP_SIZE": num_heads // num_kv_heads,
            "BLOCK_SIZE": block_size,
            "DIM": head_dim,
            "PADDED_DIM": max(16, next_power_of_2(head_dim)),
            "ITEM_WIDTH": ITEM_WIDTH,
            "BLOCK_M": tile.block_m,
            "BLOCK_N": tile.block_n,
            "DOT": _dot_dtype(query, key_view),
            "IS_QUANTISED": key_view.scales is not None,
            "HAS_WINDOW": has_window,
            "IS_SPLIT": tile.is_split and not has_window,
            "NUM_STAGES": tile.num_stages,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _dot_dtype(query: Tensor, key_view: KVView) -> Any:
    """The cache's dtype decides, except that codes become what the query is."""
    dtype = key_view.rows.dtype
    return dot_dtype(query.dtype if dtype in LARGEST_CODE else dtype)


def new_output(query: Tensor) -> Tensor:
    """Where the result goes: packed, in the dtype of the query."""
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)
