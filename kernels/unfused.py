"""Ops that some backends do in one pass, put together from the others, for backends without such a kernel."""

from __future__ import annotations

from torch import Tensor

from .interface import Kernels


def add_rms_norm(kernels: Kernels, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `interface.Kernels.add_rms_norm`."""
    summed = residual + x
    return kernels.rms_norm(summed, weight, eps), summed


def rotary_store(
    kernels: Kernels,
    qkv: Tensor,
    num_kv_heads: int,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """See `interface.Kernels.rotary_store`."""
    num_heads = qkv.shape[1] - 2 * num_kv_heads
    rotated = kernels.rotary(qkv[:, :-num_kv_heads], cos, sin)
    kernels.store_kv(rotated[:, num_heads:], qkv[:, -num_kv_heads:], key_cache, value_cache, slots)
    return rotated[:, :num_heads]
