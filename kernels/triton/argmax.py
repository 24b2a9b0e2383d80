"""The most likely token of each row: the largest logit, of equal ones the lowest id.

    row:  | BLOCK | BLOCK | ... |     one program a row keeps the best of every lane, then of all lanes

The second result is the largest logit itself, NaN if the row has one: what cannot be sampled is seen from it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import IS_INTERPRETED, KernelCall

_BLOCK = 16384 if IS_INTERPRETED else 4096
_NO_TOKEN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def argmax_kernel(logits, token_ids, peaks, logits_stride, vocab_size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * logits_stride
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_id = lane
    has_nan = tl.zeros((BLOCK,), tl.int32)
    for first in tl.range(0, vocab_size, BLOCK):
        token = first + lane
        logit = tl.load(start + token, mask=token < vocab_size, other=float("-inf")).to(tl.float32)
        has_nan |= (logit != logit).to(tl.int32)  # noqa: PLR0124  (only NaN does)
        is_better = logit > best
        best_id = tl.where(is_better, token, best_id)
        best = tl.where(is_better, logit, best)
    peak = tl.max(best, axis=0)
    chosen = tl.min(tl.where(best == peak, best_id, _NO_TOKEN), axis=0)
    tl.store(token_ids + row, chosen.to(tl.int64))
    tl.store(peaks + row, tl.where(tl.max(has_nan, axis=0) > 0, float("nan"), peak))


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids int64 [S] and largest logits fp32 [S] of logits fp32 [S, vocab]."""
    token_ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    peaks = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    argmax_call(logits, token_ids, peaks).run()
    return token_ids, peaks


def argmax_call(logits: Tensor, token_ids: Tensor, peaks: Tensor) -> KernelCall:
    """Writes `token_ids` and `peaks`."""
    assert logits.stride(1) == 1
    return KernelCall(
        argmax_kernel,
        (logits.shape[0],),
        (logits, token_ids, peaks, logits.stride(0), logits.shape[1]),
        {"BLOCK": _BLOCK},
        num_warps=8,
    )
