"""TritonKernels: the ops of this folder behind `interface.Kernels`.

Beyond the protocol it has what a GPU runner needs: plans made apart from their copy to the device, and buffers for
plans that a captured graph reads (`plan`, `new_plan_buffers`, `load_attention`, `with_plan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from ..interface import AttentionMetadata, LinearWeight
from ..quantized.matrix import QuantizedMatrix
from . import attention, kv_cache, merge, norm, quantized_linear, rotary, silu_mul
from .availability import has_fp8
from .launch import IS_INTERPRETED
from .plan import AttentionPlan, BlockIdMemo, PlanRules, plan_attention
from .plan_buffers import LoadedPlan, PlanBuffers, PlanCapacity, load_plan
from .shared_runs import HeadShape, SharingRules
from .tiles import INTERPRETED_TILES, MAX_HEAD_DIM, Tile, fitting, tiles_for

INTERPRETED_MULTIPROCESSORS = 16
"""Multiprocessors, where there are none: the interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """How attention is planned.

    Attributes:
        fixed_chunk_len: make a row's bits independent of the batch, by chunks of so many keys; None is faster.
        min_chunk_len: shortest chunk that keys are cut into, in keys.
        sharing_min_len, sharing_break_even: see `SharingRules`.
        tiles: other tiles than those of the table.
    """

    fixed_chunk_len: int | None = None
    min_chunk_len: int = 256
    sharing_min_len: int = 256
    sharing_break_even: float = 2.0
    tiles: tuple[Tile, ...] | None = None


@dataclass(frozen=True)
class TritonMetadata(AttentionMetadata):
    """Metadata with the plans made from it, one for each shape of heads: made at the first use."""

    loaded: dict[HeadShape, LoadedPlan] = field(default_factory=dict)


class TritonKernels:
    """Triton on a CUDA or ROCm device, or on a CPU under its interpreter (for tests).

    Args:
        kv_dtype: of the KV cache: fp32, fp16, bf16; or fp8 e4m3 or int8 with a scale for each row.

    Raises:
        ValueError: the device cannot do this dtype.
    """

    name = "triton"

    def __init__(
        self,
        device: torch.device,
        kv_dtype: torch.dtype = torch.float32,
        options: AttentionOptions = AttentionOptions(),
    ) -> None:
        if kv_dtype not in kv_cache.KV_DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in kv_cache.KV_DTYPES)
            raise ValueError(f"kv_dtype={kv_dtype} is not supported; use one of {known}")
        if kv_dtype == torch.float8_e4m3fn and not has_fp8(device):
            raise ValueError(
                f"kv_dtype={kv_dtype} is not supported on {device}: it needs an NVIDIA card of compute capability 8.9 "
                "or newer; use torch.int8"
            )
        self.device = device
        self.kv_dtype = kv_dtype
        self.options = options
        self._num_multiprocessors = _num_multiprocessors(device)
        self._memo = BlockIdMemo()

    def new_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """As in the protocol.

        Raises:
            ValueError: heads are wider than the tiles are made for, or cannot be stored in this dtype.
        """
        if head_dim > MAX_HEAD_DIM:
            raise ValueError(
                f"head_dim={head_dim} is not supported by Triton kernels: it must be at most {MAX_HEAD_DIM}"
            )
        if self.kv_dtype in kv_cache.LARGEST_CODE and head_dim % 4:
            raise ValueError(
                f"head_dim={head_dim} does not go with kv_dtype={self.kv_dtype}: it must be divisible by 4"
            )
        sizes = (num_blocks, block_size, num_kv_heads, head_dim)
        return (
            kv_cache.new_storage(*sizes, self.kv_dtype, self.device),
            kv_cache.new_storage(*sizes, self.kv_dtype, self.device),
        )

    def copy_blocks(self, cache: Tensor, src_block_ids: Sequence[int], dst_block_ids: Sequence[int]) -> None:
        kv_cache.copy_blocks(cache, src_block_ids, dst_block_ids)

    def store_kv(self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
        kv_cache.store_kv(key, value, *self.views(key_cache, value_cache, key.shape[1], key.shape[2]), slots)

    def prepare_attention(self, metadata: AttentionMetadata) -> TritonMetadata:
        return TritonMetadata(
            block_size=metadata.block_size,
            query_starts=metadata.query_starts,
            context_lens=metadata.context_lens,
            block_tables=metadata.block_tables,
            slots=metadata.slots,
            items=metadata.items,
        )

    def attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        head_dim = query.shape[2]
        num_kv_heads = self._num_kv_heads(key_cache, metadata.block_size, head_dim)
        shape = HeadShape(query.shape[1], num_kv_heads, head_dim)
        if not isinstance(metadata, TritonMetadata):
            metadata = self.prepare_attention(metadata)
        plan = self.plan_for(metadata, shape)
        views = self.views(key_cache, value_cache, num_kv_heads, head_dim)
        return self._attend(query, *views, plan, shape, scale, sliding_window)

    def plan_for(self, metadata: TritonMetadata, shape: HeadShape) -> LoadedPlan:
        """The plan of a step, made and copied to the device by the first call; `attention` is that one, unless a runner
        who knows the shape calls before. Mutates `metadata.loaded`."""
        if shape not in metadata.loaded:
            metadata.loaded[shape] = load_plan(self.plan(metadata, shape), shape, self.device)
        return metadata.loaded[shape]

    def _attend(
        self,
        query: Tensor,
        key_view: kv_cache.KVView,
        value_view: kv_cache.KVView,
        plan: LoadedPlan,
        shape: HeadShape,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        query = query if query.stride(-1) == 1 else query.contiguous()
        output = attention.new_output(query)
        for tile_idx, tile in enumerate(self.plan_rules(shape).tiles):
            attention.attend_items_call(
                query, key_view, value_view, output, plan, tile_idx, tile, scale, sliding_window
            ).run()
        if plan.has_parts:
            merge.merge_parts_call(plan, output).run()
        return output

    def plan_rules(self, shape: HeadShape) -> PlanRules:
        """How steps of a model are planned."""
        options = self.options
        tiles = options.tiles or (INTERPRETED_TILES if IS_INTERPRETED else self._tiles(shape))
        tiles = fitting(tiles, shape.group_size)
        return PlanRules(
            tiles=tiles if options.fixed_chunk_len is None else _one_tile(tiles),
            num_slots=self._num_multiprocessors * tiles[0].num_resident,
            min_chunk_len=options.min_chunk_len,
            fixed_chunk_len=options.fixed_chunk_len,
            sharing=SharingRules(options.sharing_min_len, options.sharing_break_even, self.kv_dtype.itemsize),
        )

    def _tiles(self, shape: HeadShape) -> tuple[Tile, ...]:
        dot_itemsize = 4 if self.kv_dtype == torch.float32 else 2
        is_quantised = self.kv_dtype in kv_cache.LARGEST_CODE
        is_hip = torch.version.hip is not None
        return tiles_for(shape.head_dim, dot_itemsize, shape.group_size, is_quantised=is_quantised, is_hip=is_hip)

    def new_plan_buffers(self, num_rows: int, num_blocks: int, shape: HeadShape) -> PlanBuffers:
        """Buffers for the plans of captured steps of `num_rows` decodes over a pool of `num_blocks`."""
        capacity = PlanCapacity.for_decodes(num_rows, num_blocks, shape, self.plan_rules(shape))
        return PlanBuffers(capacity, shape, self.device)

    def load_attention(self, metadata: AttentionMetadata, shape: HeadShape, buffers: PlanBuffers) -> TritonMetadata:
        """As `prepare_attention`, with the plan in buffers that a captured graph reads. Mutates them.

        Raises:
            PlanTooLargeError: it does not fit; the step must run without the graph.
        """
        buffers.load(self.plan(metadata, shape))
        return self.with_plan(metadata, shape, buffers.plan)

    def plan(self, metadata: AttentionMetadata, shape: HeadShape) -> AttentionPlan:
        """The plan of a step, on the host. Mutates nothing that a step reads, so one may run meanwhile."""
        return plan_attention(metadata, shape, self.plan_rules(shape), self._memo)

    def with_plan(self, metadata: AttentionMetadata, shape: HeadShape, loaded: LoadedPlan) -> TritonMetadata:
        """As `prepare_attention`, with a plan that is on the device already."""
        prepared = self.prepare_attention(metadata)
        prepared.loaded[shape] = loaded
        return prepared

    def _num_kv_heads(self, cache: Tensor, block_size: int, head_dim: int) -> int:
        if self.kv_dtype not in kv_cache.LARGEST_CODE:
            return cache.shape[1]
        return cache.shape[1] // (block_size * (head_dim + 4))

    def views(
        self, key_cache: Tensor, value_cache: Tensor, num_kv_heads: int, head_dim: int
    ) -> tuple[kv_cache.KVView, kv_cache.KVView]:
        if self.kv_dtype in kv_cache.LARGEST_CODE:
            block_size = key_cache.shape[1] // (num_kv_heads * (head_dim + 4))
        else:
            block_size = key_cache.shape[2]
        return (
            kv_cache.view_storage(key_cache, block_size, head_dim, self.kv_dtype),
            kv_cache.view_storage(value_cache, block_size, head_dim, self.kv_dtype),
        )

    def prepare_weight(self, weight: Tensor) -> Tensor:
        return weight

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
        if isinstance(weight, QuantizedMatrix):
            return quantized_linear.quantized_linear(x, weight, bias)
        assert isinstance(weight, Tensor)
        return F.linear(x, weight, bias)

    def embedding(self, token_ids: Tensor, weight: LinearWeight) -> Tensor:
        assert isinstance(weight, Tensor)
        return F.embedding(token_ids, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norm.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return norm.add_rms_norm(x, residual, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return norm.layer_norm(x, weight, bias, eps)

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotary.rotary(x, cos, sin)

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
        views = self.views(key_cache, value_cache, num_kv_heads, qkv.shape[2])
        return rotary.rotary_store(qkv, cos, sin, *views, slots)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul.silu_mul(gate_up)


def _num_multiprocessors(device: torch.device) -> int:
    return (
        INTERPRETED_MULTIPROCESSORS
        if device.type == "cpu"
        else torch.cuda.get_device_properties(device).multi_processor_count
    )


def _one_tile(tiles: tuple[Tile, ...]) -> tuple[Tile, ...]:
    """The tile that does both decodes and chunks where the batch must not matter: of 64 lines, or the next one."""
    return (next((tile for tile in tiles if tile.block_m >= 64), tiles[-1]),)
