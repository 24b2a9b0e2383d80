"""How keys and values lie in memory, and the kernel that writes them there.

A cache of one layer holds N blocks. A block has the rows of one head after another, so a program that attends with one
head reads whole runs of B * D elements:

    [N, Hk, B, D]      block 0 | head 0: slot 0 slot 1 ... slot 15 | head 1: ... |      block 1 | ...

A quantised cache (fp8 e4m3 or int8) has one fp32 scale for each row of D elements, behind the rows of the block, so
that a block is still one piece of memory and is copied as one:

    [N, bytes] uint8   block 0 | Hk * B * D codes | Hk * B scales |      block 1 | ...

    scale = max |row| / largest code         code = round(row / scale)         row ~ code * scale

A row's codes depend on that row alone: no calibration, and the same bits whoever computes it. It costs 4 bytes in D,
3 % at 128. fp8 keeps 3 bits of mantissa whatever the row, int8 7 bits of the largest element: int8 is the closer one
for rows without outliers, and runs on every card; fp8 conversions need compute capability 8.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import kv_dtypes
from ..torch_cpu.kv_storage import lazy_zeros
from .launch import KernelCall, next_power_of_2, rows_in_tile, tile_rows, with_packed_rows

LARGEST_CODE = kv_dtypes.LARGEST_CODE
"""The dtypes that are quantised."""

KV_DTYPES = (torch.float32, torch.float16, torch.bfloat16, *LARGEST_CODE)


@dataclass(frozen=True, slots=True)
class KVView:
    """A layer's key or value storage as a kernel reads it.

    Attributes:
        rows: [N, Hk, B, D], the elements or codes.
        scales: fp32 [N, Hk, B], None where nothing is quantised.
    """

    rows: Tensor
    scales: Tensor | None

    @property
    def strides(self) -> tuple[int, int, int]:
        """Of blocks, heads and slots."""
        return self.rows.stride(0), self.rows.stride(1), self.rows.stride(2)

    @property
    def scale_strides(self) -> tuple[int, int]:
        """Of blocks and heads; the slots' is 1."""
        return (0, 0) if self.scales is None else (self.scales.stride(0), self.scales.stride(1))


def new_storage(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Zeroed storage of one layer's keys or values."""
    num_elements = num_kv_heads * block_size * head_dim
    if dtype not in LARGEST_CODE:
        return lazy_zeros((num_blocks, num_kv_heads, block_size, head_dim), dtype, device)
    assert head_dim % 4 == 0, "the scales behind the codes must be aligned"
    return lazy_zeros((num_blocks, num_elements + 4 * num_kv_heads * block_size), torch.uint8, device)


def view_storage(storage: Tensor, block_size: int, head_dim: int, dtype: torch.dtype) -> KVView:
    """The rows, and the scales where there are any, of what `new_storage` made for `dtype`. Copies nothing."""
    if dtype not in LARGEST_CODE:
        assert storage.dtype == dtype
        return KVView(storage, None)
    num_rows = storage.shape[1] // (head_dim + 4)
    num_kv_heads = num_rows // block_size
    codes = storage.view(dtype)[:, : num_rows * head_dim]
    scales = storage.view(torch.float32)[:, num_rows * head_dim // 4 :]
    return KVView(
        codes.unflatten(1, (num_kv_heads, block_size, head_dim)), scales.unflatten(1, (num_kv_heads, block_size))
    )


def copy_blocks(storage: Tensor, src_block_ids: Sequence[int], dst_block_ids: Sequence[int]) -> None:
    """See `interface.Kernels.copy_blocks`."""
    ids = torch.tensor((src_block_ids, dst_block_ids), dtype=torch.int64)
    if storage.device.type == "cuda":  # from pageable memory the copy would wait for all that is launched
        ids = ids.pin_memory().to(storage.device, non_blocking=True)
    src, dst = ids
    storage.index_copy_(0, dst, storage.index_select(0, src))


@triton.jit
def _round_to_3_bits(values):
    """fp32 with three bits of mantissa, the nearest, of equally near ones the even: what fp8 e4m3 holds.

    The cast that follows is exact then; the interpreter's own rounding loses the carry into the exponent."""
    bits = values.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & ~0xFFFFF
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def store_rows(
    values, rows, scales, slot, head, is_row, strides, scale_strides,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Write fp32 rows [ROWS, PADDED_DIM] to their slots, as codes and scales where LARGEST is above 0."""
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    dim = tl.arange(0, PADDED_DIM)[None, :]
    mask = is_row[:, None] & (dim < DIM)
    target = rows + (block * strides[0] + head * strides[1] + offset * strides[2])[:, None] + dim
    if LARGEST > 0.0:
        values = tl.where(mask, values, 0.0)
        scale = tl.max(tl.abs(values), axis=1) / LARGEST
        tl.store(scales + block * scale_strides[0] + head * scale_strides[1] + offset, scale, mask=is_row)
        values = values / tl.maximum(scale, 1e-30)[:, None]
        values = tl.floor(values + 0.5) if rows.dtype.element_ty == tl.int8 else _round_to_3_bits(values)
    tl.store(target, values.to(rows.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def store_kv_kernel(
    key, value, key_rows, value_rows, key_scales, value_scales, slots, num_rows,
    key_strides, value_strides, row_strides, scale_strides,
    NUM_HEADS: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr, PADDED_DIM: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """A row is one head of one token."""
    row, offset, is_row = tile_rows(num_rows, NUM_HEADS, key_strides[0], key_strides[1], ROWS)
    token, head = row // NUM_HEADS, row % NUM_HEADS
    slot = tl.load(slots + token, mask=is_row, other=0).to(tl.int64)
    dim = tl.arange(0, PADDED_DIM)[None, :]
    mask = is_row[:, None] & (dim < DIM)
    values = tl.load(key + offset[:, None] + dim, mask=mask, other=0.0).to(tl.float32)
    store_rows(values, key_rows, key_scales, slot, head, is_row, row_strides, scale_strides,
               BLOCK_SIZE, DIM, PADDED_DIM, LARGEST)  # fmt: skip
    offset = token * value_strides[0] + head * value_strides[1]
    values = tl.load(value + offset[:, None] + dim, mask=mask, other=0.0).to(tl.float32)
    store_rows(values, value_rows, value_scales, slot, head, is_row, row_strides, scale_strides,
               BLOCK_SIZE, DIM, PADDED_DIM, LARGEST)  # fmt: skip


def store_kv(key: Tensor, value: Tensor, key_view: KVView, value_view: KVView, slots: Tensor) -> None:
    """See `interface.Kernels.store_kv`. Mutates what the views show."""
    store_kv_call(with_packed_rows(key), with_packed_rows(value), key_view, value_view, slots).run()


def store_kv_call(key: Tensor, value: Tensor, key_view: KVView, value_view: KVView, slots: Tensor) -> KernelCall:
    """Writes what the views show at `slots`."""
    num_tokens, num_heads, head_dim = key.shape
    rows = rows_in_tile(num_tokens * num_heads, next_power_of_2(head_dim))
    return KernelCall(
        store_kv_kernel,
        (triton.cdiv(num_tokens * num_heads, rows),),
        (
            *(key, value, key_view.rows, value_view.rows, key_view.scales, value_view.scales, slots),
            *(num_tokens * num_heads, (key.stride(0), key.stride(1)), (value.stride(0), value.stride(1))),
            *(key_view.strides, key_view.scale_strides),
        ),
        {"NUM_HEADS": num_heads, "ROWS": rows, **storage_constants(key_view)},
    )


def storage_constants(view: KVView) -> dict[str, int | float]:
    """What a kernel has to know of the storage when it is compiled."""
    block_size, head_dim = view.rows.shape[2:]
    return {
        "BLOCK_SIZE": block_size,
        "DIM": head_dim,
        "PADDED_DIM": next_power_of_2(head_dim),
        "LARGEST": LARGEST_CODE.get(view.rows.dtype, 0.0),
    }
