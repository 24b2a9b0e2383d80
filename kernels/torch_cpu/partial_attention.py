"""Attention of some queries over some keys, with the log-sum-exp that lets partial results be merged.

Merging (Milakov & Gimelshein 2018; Rabe & Staats 2021): two partial results o1, o2 with log-sum-exp l1, l2 over
disjoint keys combine to  w * o2 + (1 - w) * o1  with  w = e^l2 / (e^l1 + e^l2) = sigmoid(l2 - l1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .attention_units import MASKED

MAX_SCORES = 1 << 24
"""Scores held at once where they are materialised (64 MiB in fp32)."""


def partial_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None, is_causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Softmax attention over the given keys.

    Args:
        query: [b, h, n, D]; key and value: [b, h, m, D]. Any strides with the last dimension contiguous.
        mask: fp32, added to the scores; broadcasts to [b, h, n, m]. Not together with is_causal.
        is_causal: row i sees keys 0..i.

    Returns:
        (output [b, h, n, D], log-sum-exp of the scaled scores [b, h, n]).
    """
    if query.device.type == "cpu":
        # The op behind F.scaled_dot_product_attention on a CPU. It tiles the scores, so it never holds them all.
        output, log_sum_exp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
        )
        return output, log_sum_exp
    return partial_attention_by_matmul(query, key, value, scale, mask, is_causal)


def partial_attention_by_matmul(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None, is_causal: bool = False
) -> tuple[Tensor, Tensor]:
    """The same with plain matrix products, for devices without such an op; chunks rows to bound the scores held."""
    batch_size, num_heads, num_rows, _ = query.shape
    num_keys = key.shape[2]
    chunk_len = max(1, MAX_SCORES // (batch_size * num_heads * num_keys))
    outputs, log_sum_exps = [], []
    for start in range(0, num_rows, chunk_len):
        end = min(start + chunk_len, num_rows)
        scores = torch.matmul(query[:, :, start:end] * scale, key.transpose(-1, -2))
        if is_causal:
            rows = torch.arange(start, end, device=query.device)[:, None]
            scores.masked_fill_(torch.arange(num_keys, device=query.device)[None, :] > rows, MASKED)
        elif mask is not None:
            scores += mask if mask.shape[2] == 1 else mask[:, :, start:end]
        highest = scores.amax(-1, keepdim=True)
        weights = scores.sub_(highest).exp_()
        total = weights.sum(-1, keepdim=True)
        outputs.append(torch.matmul(weights, value).div_(total))
        log_sum_exps.append((highest + total.log()).squeeze(-1))
    return torch.cat(outputs, dim=2), torch.cat(log_sum_exps, dim=2)
