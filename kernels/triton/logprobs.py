"""What a token's logprob is made of: the logarithm of a row's sum of exponentials, and how many tokens come before it.

    row:  | BLOCK | BLOCK | ... |     one program a row: a pass for the largest logit, one for the sum and the counts

    total = peak + log(sum of exp(logit - peak)), in fp64       logprob of a token = its logit - total
    rank  = 1 + number of larger logits + number of equal ones with a lower id

A row's bits depend on that row alone: each lane sums its own tokens in their order, then the lanes are summed. (A
reduction by torch is cut differently for another number of rows.) A row with NaN or +inf, or of nothing but -inf, has
a total of NaN.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import IS_INTERPRETED, KernelCall

_BLOCK = 16384 if IS_INTERPRETED else 1024


@triton.jit
def _load_block(start, first, vocab_size, BLOCK: tl.constexpr):
    """Logits of a block and their token ids; -inf behind the last one."""
    token = first + tl.arange(0, BLOCK)
    return tl.load(start + token, mask=token < vocab_size, other=float("-inf")).to(tl.float32), token


@triton.jit
def token_ranks_kernel(
    logits, row_indices, token_ids, totals, ranks, logits_stride, vocab_size, BLOCK: tl.constexpr
):  # fmt: skip
    idx = tl.program_id(0).to(tl.int64)
    start = logits + tl.load(row_indices + idx).to(tl.int64) * logits_stride
    own_id = tl.load(token_ids + idx).to(tl.int64)
    own = tl.load(start + own_id).to(tl.float32)
    peaks = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in tl.range(0, vocab_size, BLOCK):
        logit, token = _load_block(start, first, vocab_size, BLOCK)
        peaks = tl.where(logit > peaks, logit, peaks)
    peak = tl.max(peaks, axis=0).to(tl.float64)
    sums = tl.zeros((BLOCK,), tl.float64)
    counts = tl.zeros((BLOCK,), tl.int32)
    for first in tl.range(0, vocab_size, BLOCK):
        logit, token = _load_block(start, first, vocab_size, BLOCK)
        sums += tl.where(token < vocab_size, tl.exp(logit.to(tl.float64) - peak), 0.0)
        counts += ((logit > own) | ((logit == own) & (token < own_id))).to(tl.int32)
    tl.store(totals + idx, peak + tl.log(tl.sum(sums, axis=0)))
    tl.store(ranks + idx, tl.sum(counts, axis=0).to(tl.int64) + 1)


def token_ranks(logits: Tensor, row_indices: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """For each of R named tokens: its row's total, fp64 [R], and its rank there, int64 [R].

    Args:
        logits: fp32 [rows, vocab].
        row_indices, token_ids: int64 [R].
    """
    totals = torch.empty(row_indices.shape, dtype=torch.float64, device=logits.device)
    ranks = torch.empty(row_indices.shape, dtype=torch.int64, device=logits.device)
    token_ranks_call(logits, row_indices, token_ids, totals, ranks).run()
    return totals, ranks


def token_ranks_call(
    logits: Tensor, row_indices: Tensor, token_ids: Tensor, totals: Tensor, ranks: Tensor
) -> KernelCall:
    """Writes `totals` and `ranks`."""
    assert logits.stride(1) == 1
    return KernelCall(
        token_ranks_kernel,
        (row_indices.shape[0],),
        (logits, row_indices, token_ids, totals, ranks, logits.stride(0), logits.shape[1]),
        {"BLOCK": _BLOCK},
        num_warps=8,
    )
