"""The kernels that are compiled ahead of time: each op with the shapes of real models, on tensors without memory.

A variant is a KernelCall as the op itself makes it, so it is compiled with the constants, strides and number of warps
it is launched with. Shapes are those of Llama 3 8B (32 query heads, 8 key/value heads of 128), SmolLM2 (9, 3 of 64),
Gemma 2 9B (16, 8 of 256), Qwen 3 32B (64, 8 of 128) and Phi 2 (32, 32 of 80: heads that are no power of 2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from .quantized.matrix import QuantizedMatrix
from .triton import argmax, attention, kv_cache, logits_edit, logits_mask, merge, norm, rotary, sampling, silu_mul
from .triton import quantized_linear as quantized
from .triton.launch import KernelCall
from .triton.logprobs import token_ranks_call
from .triton.plan import ITEM_WIDTH
from .triton.plan_buffers import LoadedPlan
from .triton.shared_runs import HeadShape
from .triton.tiles import Tile, tiles_for

LLAMA, SMOLLM, GEMMA = HeadShape(32, 8, 128), HeadShape(9, 3, 64), HeadShape(16, 8, 256)
QWEN, PHI = HeadShape(64, 8, 128), HeadShape(32, 32, 80)
BLOCK_SIZE, NUM_ROWS, VOCAB_SIZE, HIDDEN_SIZE = 16, 96, 128_256, 4096


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel to compile.

    Attributes:
        make: the launch; takes whether the target is an AMD card.
        has_products: the matrix unit must be used, and keys copied asynchronously where the card can.
        is_wide: its tile has the 64 lines that an H200's warp group multiplies at once.
        kinds: the targets it is for: "nvidia" (all of them), "sm_90" only, "amd".
        num_resident: programs of it that the planner supposes on a multiprocessor of an NVIDIA card.
    """

    make: Callable[[bool], KernelCall]
    has_products: bool = False
    is_wide: bool = False
    kinds: tuple[str, ...] = ("nvidia", "amd")
    num_resident: int = 1


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _int32(*shape: int) -> Tensor:
    return _empty(*shape, dtype=torch.int32)


def _int64(*shape: int) -> Tensor:
    return _empty(*shape, dtype=torch.int64)


def _fp32(*shape: int) -> Tensor:
    return _empty(*shape, dtype=torch.float32)


def _views(shape: HeadShape, dtype: torch.dtype) -> tuple[kv_cache.KVView, kv_cache.KVView]:
    def view() -> kv_cache.KVView:
        sizes = (64, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
        storage = kv_cache.new_storage(*sizes, dtype, torch.device("meta"))
        return kv_cache.view_storage(storage, BLOCK_SIZE, shape.head_dim, dtype)

    return view(), view()


def _plan(shape: HeadShape, num_tiles: int) -> LoadedPlan:
    return LoadedPlan(
        positions=_int32(NUM_ROWS),
        row_ranges=_int32(NUM_ROWS + 1),
        rows=_int32(256),
        targets=_int32(256),
        kv_blocks=_int32(256),
        items=tuple(_int32(16, ITEM_WIDTH) for _ in range(num_tiles)),
        partial_out=_fp32(64, shape.num_heads, shape.head_dim),
        partial_log=_fp32(64, shape.num_heads),
        has_parts=True,
    )


def _tiles(shape: HeadShape, kv_dtype: torch.dtype, is_hip: bool) -> tuple[Tile, ...]:
    itemsize = 4 if kv_dtype == torch.float32 else 2
    is_quantised = kv_dtype in kv_cache.LARGEST_CODE
    return tiles_for(shape.head_dim, itemsize, shape.group_size, is_quantised=is_quantised, is_hip=is_hip)


def _attention(shape: HeadShape, tile_idx: int, is_hip: bool, kv_dtype: torch.dtype, window: int | None) -> KernelCall:
    dot_dtype = torch.float32 if kv_dtype == torch.float32 else torch.bfloat16
    tiles = _tiles(shape, kv_dtype, is_hip)
    query, output = (_empty(NUM_ROWS, shape.num_heads, shape.head_dim, dtype=dot_dtype) for _ in range(2))
    plan = _plan(shape, len(tiles))
    views = _views(shape, kv_dtype)
    scale = shape.head_dim**-0.5
    return attention.attend_items_call(query, *views, output, plan, tile_idx, tiles[tile_idx], scale, window)


def _merge(is_hip: bool) -> KernelCall:
    return merge.merge_parts_call(_plan(LLAMA, 1), _empty(NUM_ROWS, LLAMA.num_heads, LLAMA.head_dim))


def _store(kv_dtype: torch.dtype, is_hip: bool) -> KernelCall:
    key, value = (_empty(NUM_ROWS, LLAMA.num_kv_heads, LLAMA.head_dim) for _ in range(2))
    return kv_cache.store_kv_call(key, value, *_views(LLAMA, kv_dtype), _int64(NUM_ROWS))


def _rotary(is_hip: bool) -> KernelCall:
    x, output = (_empty(NUM_ROWS, LLAMA.num_heads, LLAMA.head_dim) for _ in range(2))
    angles = _fp32(NUM_ROWS, LLAMA.head_dim // 2)
    return rotary.rotary_call(x, angles, angles, output)


def _rotary_store(kv_dtype: torch.dtype, is_hip: bool) -> KernelCall:
    qkv = _empty(NUM_ROWS, LLAMA.num_heads + 2 * LLAMA.num_kv_heads, LLAMA.head_dim)
    query = _empty(NUM_ROWS, LLAMA.num_heads, LLAMA.head_dim)
    angles = _fp32(NUM_ROWS, LLAMA.head_dim // 2)
    return rotary.rotary_store_call(qkv, angles, angles, query, *_views(LLAMA, kv_dtype), _int64(NUM_ROWS))


def _rms_norm(has_residual: bool, is_hip: bool) -> KernelCall:
    x, residual, output, summed = (_empty(NUM_ROWS, HIDDEN_SIZE) for _ in range(4))
    if has_residual:
        return norm.rms_norm_call(x, residual, _empty(HIDDEN_SIZE), 1e-5, output, summed)
    return norm.rms_norm_call(x, None, _empty(HIDDEN_SIZE), 1e-5, output, None)


def _layer_norm(is_hip: bool) -> KernelCall:
    x, output = (_empty(NUM_ROWS, HIDDEN_SIZE) for _ in range(2))
    return norm.layer_norm_call(x, _empty(HIDDEN_SIZE), _empty(HIDDEN_SIZE), 1e-5, output)


def _silu_mul(is_hip: bool) -> KernelCall:
    return silu_mul.silu_mul_call(_empty(NUM_ROWS, 2 * 14_336), _empty(NUM_ROWS, 14_336))


def _quantized(bits: int) -> QuantizedMatrix:
    """Llama's matrix down: 4 bits as in a checkpoint of GPTQ, 8 as they are rounded while a model is loaded."""
    num_inputs = 14_336
    num_groups = num_inputs // 128 if bits == 4 else 1
    codes = _empty(HIDDEN_SIZE, num_inputs * bits // 8, dtype=torch.uint8 if bits == 4 else torch.int8)
    zeros = _empty(HIDDEN_SIZE, num_groups, dtype=torch.int16) if bits == 4 else None
    return QuantizedMatrix(bits, num_inputs // num_groups, codes, _fp32(HIDDEN_SIZE, num_groups), zeros)


def _quantized_linear(bits: int, num_rows: int, is_hip: bool) -> KernelCall:
    weight = _quantized(bits)
    return quantized.quantized_linear_call(
        _empty(num_rows, weight.shape[1]), weight, None, _empty(num_rows, HIDDEN_SIZE)
    )


def _dequantize(bits: int, is_hip: bool) -> KernelCall:
    weight = _quantized(bits)
    return quantized.dequantize_call(weight, _empty(*weight.shape))


def _logits() -> Tensor:
    return _fp32(NUM_ROWS, VOCAB_SIZE)


def _argmax(call_idx: int, is_hip: bool) -> KernelCall:
    return argmax.argmax_calls(_logits(), _int64(NUM_ROWS), _fp32(NUM_ROWS))[call_idx]


def _token_ranks(is_hip: bool) -> KernelCall:
    outputs = _empty(NUM_ROWS, dtype=torch.float64), _int64(NUM_ROWS)
    return token_ranks_call(_logits(), _int64(NUM_ROWS), _int64(NUM_ROWS), *outputs)


def _mask(is_hip: bool) -> KernelCall:
    return logits_mask.mask_logits_call(_logits(), _int32(8, VOCAB_SIZE // 32), _int32(8))


def _edit(is_hip: bool) -> KernelCall:
    penalties = [_empty(NUM_ROWS, dtype=torch.float64) for _ in range(2)]
    edits = (_int32(64), _int32(64), _fp32(64), _int32(64))
    return logits_edit.edit_logits_call(_logits(), *edits, _fp32(NUM_ROWS), *penalties)


def _sample(call_idx: int, is_hip: bool) -> KernelCall:
    wanted = sampling.SamplingTensors(
        temperatures=_fp32(NUM_ROWS),
        top_ks=_int32(NUM_ROWS),
        top_ps=_empty(NUM_ROWS, dtype=torch.float64),
        min_ps=_fp32(NUM_ROWS),
        seeds=_int64(NUM_ROWS),
        sample_indices=_int64(NUM_ROWS),
        positions=_int64(NUM_ROWS),
    )
    return sampling.sample_calls(_logits(), _int64(NUM_ROWS), _fp32(NUM_ROWS), wanted)[call_idx]


def _attends(
    shape: HeadShape, tile_idx: int, *kinds: str, kv_dtype: torch.dtype = torch.bfloat16, window: int | None = None
) -> Variant:
    def make(is_hip: bool) -> KernelCall:
        return _attention(shape, tile_idx, is_hip, kv_dtype, window)

    tile = _tiles(shape, kv_dtype, is_hip=False)[tile_idx]
    return Variant(
        make,
        has_products=kv_dtype != torch.float32,
        is_wide=tile_idx > 0,
        kinds=kinds or ("nvidia", "amd"),
        num_resident=tile.num_resident,
    )


_FP8 = torch.float8_e4m3fn
VARIANTS: dict[str, Variant] = {
    "attention_llama_64_int8": _attends(LLAMA, 1, "nvidia", kv_dtype=torch.int8),
    "attention_gemma_64": _attends(GEMMA, 1),
    "attention_llama_64": _attends(LLAMA, 1),
    "attention_llama_128": _attends(LLAMA, 2),
    "attention_llama_128_fp8": _attends(LLAMA, 2, "sm_90", kv_dtype=_FP8),
    "attention_llama_64_window": _attends(LLAMA, 1, "sm_90", window=4096),
    "attention_llama_16": _attends(LLAMA, 0),
    "attention_llama_16_fp8": _attends(LLAMA, 0, "sm_90", kv_dtype=_FP8),
    "attention_llama_16_int8": _attends(LLAMA, 0, kv_dtype=torch.int8),
    "attention_gemma_16": _attends(GEMMA, 0),
    "attention_smollm_16": _attends(SMOLLM, 0),
    "attention_smollm_64_fp32": _attends(SMOLLM, 1, "sm_90", kv_dtype=torch.float32),
    "attention_llama_32_fp32": _attends(LLAMA, 1, "sm_90", kv_dtype=torch.float32),
    "attention_gemma_32_fp32": _attends(GEMMA, 1, "sm_90", kv_dtype=torch.float32),
    "attention_gemma_16_fp32": _attends(GEMMA, 0, "sm_90", kv_dtype=torch.float32),
    "attention_gemma_64_int8": _attends(GEMMA, 1, "sm_90", "amd", kv_dtype=torch.int8),
    "attention_gemma_16_int8": _attends(GEMMA, 0, "sm_90", "amd", kv_dtype=torch.int8),
    "attention_qwen_16": _attends(QWEN, 0, "sm_90"),
    "attention_phi_16": _attends(PHI, 0, "sm_90"),
    "attention_smollm_128": _attends(SMOLLM, 2, "sm_90"),
    "quantized_linear_int4_64": Variant(partial(_quantized_linear, 4, 64), has_products=True),
    "quantized_linear_int4_16": Variant(partial(_quantized_linear, 4, 16), has_products=True),
    "quantized_linear_int8_64": Variant(partial(_quantized_linear, 8, 64), has_products=True),
    "quantized_linear_int8_16": Variant(partial(_quantized_linear, 8, 16), has_products=True),
    "dequantize_int4": Variant(partial(_dequantize, 4)),
    "dequantize_int8": Variant(partial(_dequantize, 8)),
    "merge": Variant(_merge),
    "sample_draw": Variant(partial(_sample, 3)),
    "sample_gather": Variant(partial(_sample, 2)),
    "sample_weigh": Variant(partial(_sample, 0)),
    "sample_choose": Variant(partial(_sample, 1)),
    "argmax_pieces": Variant(partial(_argmax, 0)),
    "argmax_rows": Variant(partial(_argmax, 1)),
    "token_ranks": Variant(_token_ranks),
    "mask_logits": Variant(_mask),
    "edit_logits": Variant(_edit),
    "store_kv": Variant(partial(_store, torch.bfloat16)),
    "store_kv_int8": Variant(partial(_store, torch.int8)),
    "store_kv_fp8": Variant(partial(_store, _FP8), kinds=("sm_90",)),
    "rotary": Variant(_rotary),
    "rotary_store": Variant(partial(_rotary_store, torch.bfloat16)),
    "rotary_store_fp8": Variant(partial(_rotary_store, _FP8), kinds=("sm_90",)),
    "rms_norm": Variant(partial(_rms_norm, False)),
    "add_rms_norm": Variant(partial(_rms_norm, True)),
    "layer_norm": Variant(_layer_norm),
    "silu_mul": Variant(_silu_mul),
}
"""The slowest to compile first."""
