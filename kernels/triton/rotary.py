"""Rotary position embedding, alone or together with the store of keys and values (Su et al. 2021, section 3.4).

Dimension d of the first R = 2 * half is rotated with its partner half a rotation away; the rest passes through:

    d:          0 ... half - 1 | half ... R - 1 | R ... D - 1
    partner:    d + half       | d - half       | none
    result:     x cos - p sin  | x cos + p sin  | x            cos, sin of index d mod half

A row is one head of one token. A program owns ROWS of them and loads each twice, straight and shifted by half; the
second time it comes from the L1 cache. `rotary_store` spares a layer two passes over its keys and values: the heads of
the fused projection go where they belong, queries to a new tensor, rotated keys and values to their slots:

    qkv [T, Hq + 2 Hk, D]      | query heads | key heads | value heads |
                                 rotate: out   rotate: slot   slot
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .kv_cache import KVView, storage_constants, store_rows
from .launch import KernelCall, next_power_of_2, rows_in_tile, tile_rows, with_packed_rows


@triton.jit
def _load_rotated(
    rows, token, is_row, is_turned, cos, sin, HALF: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr
):
    """fp32 [ROWS, PADDED_DIM] of the rows at pointers `rows`; those of `is_turned` rotated by their tokens' angles."""
    dim = tl.arange(0, PADDED_DIM)
    is_first = dim < HALF
    partner = tl.where(is_first, dim + HALF, dim - HALF)
    is_rotated = (is_row & is_turned)[:, None] & (dim < 2 * HALF)[None, :]
    angle = token[:, None] * HALF + tl.where(is_first, dim, dim - HALF)[None, :]
    cosine = tl.load(cos + angle, mask=is_rotated, other=1.0).to(tl.float32)
    sine = tl.load(sin + angle, mask=is_rotated, other=0.0).to(tl.float32)
    sine = tl.where(is_first[None, :], -sine, sine)
    mask = is_row[:, None] & (dim < DIM)[None, :]
    straight = tl.load(rows[:, None] + dim[None, :], mask=mask, other=0.0).to(tl.float32)
    shifted = tl.load(rows[:, None] + partner[None, :], mask=is_rotated, other=0.0).to(tl.float32)
    return straight * cosine + shifted * sine


@triton.jit(do_not_specialize=["num_rows"])
def rotary_kernel(
    x, cos, sin, output, num_rows, strides,
    NUM_HEADS: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
):  # fmt: skip
    row, offset, is_row = tile_rows(num_rows, NUM_HEADS, strides[0], strides[1], ROWS)
    rotated = _load_rotated(x + offset, row // NUM_HEADS, is_row, is_row, cos, sin, HALF, DIM, PADDED_DIM)
    dim = tl.arange(0, PADDED_DIM)[None, :]
    target = output + row[:, None] * DIM + dim
    tl.store(target, rotated.to(output.dtype.element_ty), mask=is_row[:, None] & (dim < DIM))


@triton.jit(do_not_specialize=["num_rows"])
def rotary_store_kernel(
    qkv, cos, sin, slots, query, key_rows, value_rows, key_scales, value_scales,
    num_rows, strides, row_strides, scale_strides,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    all_heads: tl.constexpr = NUM_HEADS + 2 * NUM_KV_HEADS
    row, offset, is_row = tile_rows(num_rows, all_heads, strides[0], strides[1], ROWS)
    token, head = row // all_heads, row % all_heads
    is_query = is_row & (head < NUM_HEADS)
    is_value = is_row & (head >= NUM_HEADS + NUM_KV_HEADS)
    is_key = is_row & (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
    values = _load_rotated(qkv + offset, token, is_row, is_query | is_key, cos, sin, HALF, DIM, PADDED_DIM)
    dim = tl.arange(0, PADDED_DIM)[None, :]
    target = query + (token * NUM_HEADS + head)[:, None] * DIM + dim
    tl.store(target, values.to(query.dtype.element_ty), mask=is_query[:, None] & (dim < DIM))
    slot = tl.load(slots + token, mask=is_row, other=0).to(tl.int64)
    store_rows(values, key_rows, key_scales, slot, head - NUM_HEADS, is_key, row_strides, scale_strides,
               BLOCK_SIZE, DIM, PADDED_DIM, LARGEST)  # fmt: skip
    store_rows(values, value_rows, value_scales, slot, head - NUM_HEADS - NUM_KV_HEADS, is_value,
               row_strides, scale_strides, BLOCK_SIZE, DIM, PADDED_DIM, LARGEST)  # fmt: skip


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See `interface.Kernels.rotary`."""
    output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rotary_call(with_packed_rows(x), cos.contiguous(), sin.contiguous(), output).run()
    return output


def rotary_store(qkv: Tensor, cos: Tensor, sin: Tensor, key_view: KVView, value_view: KVView, slots: Tensor) -> Tensor:
    """Rotate the query and key heads of qkv [T, Hq + 2 Hk, D]; keys and values go to `slots` of the views.

    Returns the rotated queries [T, Hq, D]. The same bits as `rotary` and `store_kv` in fp32; in a narrower dtype the
    key is rounded once instead of twice. Mutates what the views show."""
    num_heads = qkv.shape[1] - 2 * key_view.rows.shape[1]
    query = torch.empty((qkv.shape[0], num_heads, qkv.shape[2]), dtype=qkv.dtype, device=qkv.device)
    packed = with_packed_rows(qkv)
    rotary_store_call(packed, cos.contiguous(), sin.contiguous(), query, key_view, value_view, slots).run()
    return query


def rotary_call(x: Tensor, cos: Tensor, sin: Tensor, output: Tensor) -> KernelCall:
    """Writes `output`."""
    num_tokens, num_heads, head_dim = x.shape
    num_rows, padded = num_tokens * num_heads, next_power_of_2(head_dim)
    rows = rows_in_tile(num_rows, padded)
    return KernelCall(
        rotary_kernel,
        (triton.cdiv(num_rows, rows),),
        (x, cos, sin, output, num_rows, (x.stride(0), x.stride(1))),
        {"NUM_HEADS": num_heads, "ROWS": rows, "HALF": cos.shape[1], "DIM": head_dim, "PADDED_DIM": padded},
    )


def rotary_store_call(
    qkv: Tensor, cos: Tensor, sin: Tensor, query: Tensor, key_view: KVView, value_view: KVView, slots: Tensor
) -> KernelCall:
    """Writes `query` and what the views show at `slots`."""
    num_tokens, num_heads, head_dim = query.shape
    num_rows = num_tokens * qkv.shape[1]
    rows = rows_in_tile(num_rows, next_power_of_2(head_dim))
    return KernelCall(
        rotary_store_kernel,
        (triton.cdiv(num_rows, rows),),
        (
            *(qkv, cos, sin, slots, query),
            *(key_view.rows, value_view.rows, key_view.scales, value_view.scales),
            *(num_rows, (qkv.stride(0), qkv.stride(1)), key_view.strides, key_view.scale_strides),
        ),
        {
            "NUM_HEADS": num_heads,
            "NUM_KV_HEADS": key_view.rows.shape[1],
            "ROWS": rows,
            "HALF": cos.shape[1],
            **storage_constants(key_view),
        },
    )
