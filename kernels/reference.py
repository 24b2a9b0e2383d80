"""The oracle: every op in slow, obvious fp32 torch. Other backends are tested against it; it is never tuned.

KV layout: [num_blocks, block_size, Hk, D] for keys and for values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import unfused
from .interface import AttentionMetadata, LinearWeight
from .quantized.matrix import QuantizedMatrix


class ReferenceKernels:
    """Implements `interface.Kernels` on any torch device."""

    name = "reference"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def new_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        shape = (num_blocks, block_size, num_kv_heads, head_dim)
        return torch.zeros(shape, device=self.device), torch.zeros(shape, device=self.device)

    def prepare_attention(self, metadata: AttentionMetadata) -> AttentionMetadata:
        return metadata

    def copy_blocks(self, cache: Tensor, src_block_ids: Sequence[int], dst_block_ids: Sequence[int]) -> None:
        cache[list(dst_block_ids)] = cache[list(src_block_ids)].clone()

    def store_kv(self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
        block_size = key_cache.shape[1]
        key_cache[slots // block_size, slots % block_size] = key.float()
        value_cache[slots // block_size, slots % block_size] = value.float()

    def attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        group_size = query.shape[1] // key_cache.shape[2]
        outputs = []
        for seq_idx, context_len in enumerate(metadata.context_lens):
            start, end = metadata.query_starts[seq_idx], metadata.query_starts[seq_idx + 1]
            block_ids = list(metadata.block_tables[seq_idx])
            key = key_cache[block_ids].flatten(0, 1)[:context_len].repeat_interleave(group_size, dim=1)
            value = value_cache[block_ids].flatten(0, 1)[:context_len].repeat_interleave(group_size, dim=1)
            scores = torch.einsum("qhd,khd->hqk", query[start:end].float(), key) * scale
            row_positions = torch.arange(context_len - (end - start), context_len, device=self.device)[:, None]
            positions = torch.arange(context_len, device=self.device)[None, :]
            is_visible = positions <= row_positions
            if sliding_window is not None:
                is_visible &= positions > row_positions - sliding_window
            weights = torch.softmax(scores.masked_fill(~is_visible, float("-inf")), dim=-1)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, value))
        return torch.cat(outputs).to(query.dtype)

    def prepare_weight(self, weight: Tensor) -> Tensor:
        return weight

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
        if isinstance(weight, QuantizedMatrix):
            weight = weight.dequantize(torch.float32)
        assert isinstance(weight, Tensor)
        y = x.float() @ weight.float().t()
        return (y if bias is None else y + bias.float()).to(x.dtype)

    def embedding(self, token_ids: Tensor, weight: LinearWeight) -> Tensor:
        assert isinstance(weight, Tensor)
        return weight[token_ids]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        x32 = x.float()
        centred = x32 - x32.mean(-1, keepdim=True)
        normed = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps)
        return (normed * weight.float() + bias.float()).to(x.dtype)

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = cos.shape[1]
        x32 = x.float()
        first, second, rest = x32[..., :half], x32[..., half : 2 * half], x32[..., 2 * half :]
        cos, sin = cos.float()[:, None, :], sin.float()[:, None, :]
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
        return rotated.to(x.dtype)

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
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)
