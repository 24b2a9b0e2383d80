"""The most likely token of each row: the largest logit, of equal ones the lowest id.

    row:  | PIECE | PIECE | ... |    a program a piece; then a program a row takes the best of the pieces

One program a row would read 150,000 logits with a single multiprocessor. The second result is the largest logit itself,
NaN if the row has one: what cannot be sampled is seen from it. The token is one of the vocabulary in any case.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import IS_INTERPRETED, KernelCall, next_power_of_2

_PIECE = 16384 if IS_INTERPRETED else 4096
_NO_TOKEN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def best_of_pieces_kernel(logits, piece_ids, piece_peaks, logits_stride, vocab_size, num_pieces, PIECE: tl.constexpr):
    """Writes ids int32 and peaks fp32 [S, pieces]; a piece with a NaN has its first NaN."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = piece * PIECE + tl.arange(0, PIECE)
    is_token = token < vocab_size
    logit = tl.load(logits + row * logits_stride + token, mask=is_token, other=float("-inf")).to(tl.float32)
    is_nan = logit != logit  # noqa: PLR0124  (only NaN does)
    has_nan = tl.max(is_nan.to(tl.int32), axis=0) > 0
    peak = tl.max(tl.where(is_nan, float("-inf"), logit), axis=0)
    is_best = tl.where(has_nan, is_nan, is_token & (logit == peak))
    tl.store(piece_ids + row * num_pieces + piece, tl.min(tl.where(is_best, token, _NO_TOKEN), axis=0))
    tl.store(piece_peaks + row * num_pieces + piece, tl.where(has_nan, float("nan"), peak))


@triton.jit
def best_piece_kernel(piece_ids, piece_peaks, token_ids, peaks, num_pieces, PADDED_PIECES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, PADDED_PIECES)
    is_piece = piece < num_pieces
    token = tl.load(piece_ids + row * num_pieces + piece, mask=is_piece, other=_NO_TOKEN).to(tl.int32)
    best = tl.load(piece_peaks + row * num_pieces + piece, mask=is_piece, other=float("-inf")).to(tl.float32)
    is_nan = best != best  # noqa: PLR0124
    has_nan = tl.max(is_nan.to(tl.int32), axis=0) > 0
    peak = tl.max(tl.where(is_nan, float("-inf"), best), axis=0)
    is_best = tl.where(has_nan, is_nan, best == peak)
    tl.store(token_ids + row, tl.min(tl.where(is_best, token, _NO_TOKEN), axis=0).to(tl.int64))
    tl.store(peaks + row, tl.where(has_nan, float("nan"), peak))


def argmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids int64 [S] and largest logits fp32 [S] of logits fp32 [S, vocab]."""
    token_ids = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    peaks = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    for call in argmax_calls(logits, token_ids, peaks):
        call.run()
    return token_ids, peaks


def argmax_calls(logits: Tensor, token_ids: Tensor, peaks: Tensor) -> list[KernelCall]:
    """What `argmax` launches, one after another; the last writes `token_ids` and `peaks`."""
    assert logits.stride(1) == 1
    num_rows, vocab_size = logits.shape
    num_pieces = triton.cdiv(vocab_size, _PIECE)
    piece_ids = torch.empty((num_rows, num_pieces), dtype=torch.int32, device=logits.device)
    piece_peaks = torch.empty((num_rows, num_pieces), dtype=torch.float32, device=logits.device)
    return [
        KernelCall(
            best_of_pieces_kernel,
            (num_rows, num_pieces),
            (logits, piece_ids, piece_peaks, logits.stride(0), vocab_size, num_pieces),
            {"PIECE": _PIECE},
            num_warps=8,
        ),
        KernelCall(
            best_piece_kernel,
            (num_rows,),
            (piece_ids, piece_peaks, token_ids, peaks, num_pieces),
            {"PADDED_PIECES": next_power_of_2(num_pieces)},
        ),
    ]
