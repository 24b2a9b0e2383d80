"""TorchKernels: the ops of this folder behind `interface.Kernels`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import unfused
from ..interface import AttentionMetadata, LinearWeight
from ..quantized.matrix import QuantizedMatrix
from ..quantized.product import quantized_linear
from . import attention, kv_storage, linear, pointwise


class TorchKernels:
    """Fast ops in plain torch. Tuned for CPUs; they run on any torch device."""

    name = "torch"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def new_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        shape = (num_blocks, block_size, num_kv_heads, head_dim)
        return (
            kv_storage.lazy_zeros(shape, torch.float32, self.device),
            kv_storage.lazy_zeros(shape, torch.float32, self.device),
        )

    def prepare_attention(self, metadata: AttentionMetadata) -> AttentionMetadata:
        return attention.prepare(metadata)

    def copy_blocks(self, cache: Tensor, src_block_ids: Sequence[int], dst_block_ids: Sequence[int]) -> None:
        kv_storage.copy_blocks(cache, src_block_ids, dst_block_ids)

    def store_kv(self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
        kv_storage.store_kv(key, value, key_cache, value_cache, slots)

    def attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        return attention.paged_attention(query, key_cache, value_cache, metadata, scale, sliding_window)

    def prepare_weight(self, weight: Tensor) -> Tensor:
        return weight

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
        if isinstance(weight, QuantizedMatrix):
            return quantized_linear(x, weight, bias, linear.linear)
        assert isinstance(weight, Tensor)
        return linear.linear(x, weight, bias)

    def embedding(self, token_ids: Tensor, weight: LinearWeight) -> Tensor:
        assert isinstance(weight, Tensor)
        return F.embedding(token_ids, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return pointwise.rms_norm(x, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return pointwise.layer_norm(x, weight, bias, eps)

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return pointwise.rotary(x, cos, sin)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return unfused.add_rms_norm(self, x, residual, weight, eps)

    def rotary_store(
        self,
        qkv: Tensor,
        num_kv_heads: int,
        cos: Tensor,
        sin: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
    ) -> Tensor:
        return unfused.rotary_store(self, qkv, num_kv_heads, cos, sin, key_cache, value_cache, slots)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return pointwise.silu_mul(gate_up)
