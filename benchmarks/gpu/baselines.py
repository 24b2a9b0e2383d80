"""What attention is compared with: torch's SDPA and FlexAttention over keys and values that lie in one piece.

Neither reads our blocks. Gathering them first is not counted, so the comparison is the kindest one for them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .bench import Bench
from .settings import AttentionShape

Call = Callable[[], object]


def dense_inputs(bench: Bench, shape: AttentionShape, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query [S, Hq, rows, D], key and value [S, Hk, context, D]."""
    heads, context_len = bench.settings.heads, shape.prefix_len + shape.num_new_tokens
    query = bench.randn(shape.num_seqs, heads.num_heads, shape.num_new_tokens, heads.head_dim, seed=seed)
    key, value = bench.randn(2, shape.num_seqs, heads.num_kv_heads, context_len, heads.head_dim, seed=seed)
    return query, key, value


def kv_bytes(bench: Bench, shape: AttentionShape) -> int:
    """Bytes of the keys and values of all contexts."""
    heads = bench.settings.heads
    num_tokens = shape.num_seqs * (shape.prefix_len + shape.num_new_tokens)
    return num_tokens * heads.num_kv_heads * heads.head_dim * 2 * bench.dtype.itemsize


def sdpa_calls(bench: Bench, shape: AttentionShape) -> list[Call]:
    """Calls of torch's scaled_dot_product_attention on rotated inputs."""
    return [
        _sdpa_call(shape, *dense_inputs(bench, shape, seed))
        for seed in range(bench.timer.num_rotated(kv_bytes(bench, shape)))
    ]


def _sdpa_call(shape: AttentionShape, query: Tensor, key: Tensor, value: Tensor) -> Call:
    if shape.num_new_tokens == 1:
        return partial(F.scaled_dot_product_attention, query, key, value, enable_gqa=True)
    # With heads repeated beforehand: products, not keys, are what takes the time here.
    group_size = query.shape[1] // key.shape[1]
    key, value = (rows.repeat_interleave(group_size, dim=1) for rows in (key, value))
    if shape.prefix_len == 0:
        return partial(F.scaled_dot_product_attention, query, key, value, is_causal=True)
    mask = causal_lower_right(shape.num_new_tokens, shape.prefix_len + shape.num_new_tokens)
    return partial(F.scaled_dot_product_attention, query, key, value, attn_mask=mask)


def flex_calls(bench: Bench, shape: AttentionShape) -> list[Call]:
    """Calls of FlexAttention on rotated inputs, compiled where there is a GPU."""
    attend: Any = torch.compile(flex_attention, dynamic=False) if bench.is_cuda else _uncompiled_flex
    mask = _causal_mask(bench, shape) if shape.num_new_tokens > 1 else None
    return [
        partial(attend, *dense_inputs(bench, shape, seed), block_mask=mask, enable_gqa=True)
        for seed in range(bench.timer.num_rotated(kv_bytes(bench, shape)))
    ]


def _uncompiled_flex(*args: Any, **options: Any) -> Tensor:
    """The same in eager mode, which warns that it is slow: it is only to be run, not timed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return flex_attention(*args, **options)


def _causal_mask(bench: Bench, shape: AttentionShape) -> Any:
    prefix_len = shape.prefix_len

    def is_seen(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return row + prefix_len >= key

    context_len = prefix_len + shape.num_new_tokens
    return create_block_mask(is_seen, None, None, shape.num_new_tokens, context_len, device=bench.device)
