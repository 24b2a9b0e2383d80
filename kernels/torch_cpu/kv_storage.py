"""Storage of keys and values; `attention.py` has a picture of the layout."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that cost no memory until they are written.

    torch.zeros touches every page of a CPU tensor. Anonymous private pages come zeroed from the operating system when
    they are first written, so a pool may be sized for the worst case and cost what is used."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    if num_bytes == 0:
        return torch.zeros(shape, dtype=dtype)
    if hasattr(mmap, "MAP_PRIVATE"):
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:
        pages = mmap.mmap(-1, num_bytes)
    # The tensor keeps the pages alive; they are unmapped when its storage is freed.
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def store_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """See `interface.Kernels.store_kv`."""
    key_cache.flatten(0, 1).index_copy_(0, slots, key.to(key_cache.dtype))
    value_cache.flatten(0, 1).index_copy_(0, slots, value.to(value_cache.dtype))


def copy_blocks(cache: Tensor, src_block_ids: Sequence[int], dst_block_ids: Sequence[int]) -> None:
    """See `interface.Kernels.copy_blocks`."""
    src = torch.tensor(src_block_ids, dtype=torch.int64, device=cache.device)
    dst = torch.tensor(dst_block_ids, dtype=torch.int64, device=cache.device)
    cache.index_copy_(0, dst, cache.index_select(0, src))
