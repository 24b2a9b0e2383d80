"""Forbid the tokens that a grammar does not allow: their logits become -inf.

    bit i % 32 of word i // 32 is token i             mask row:  | w0: tokens 0..31 | w1: 32..63 | ... |
    logits row:  | BLOCK tokens | BLOCK tokens | ...             one program: BLOCK tokens of one masked row

Masks come for some rows of a step only; `row_indices` names the row of logits for each. Words of allowed tokens need no
write, and a block whose words are all ones is not even read.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import IS_INTERPRETED, KernelCall

_BLOCK = 16384 if IS_INTERPRETED else 2048


@triton.jit
def mask_logits_kernel(logits, masks, row_indices, logits_stride, mask_stride, vocab_size, BLOCK: tl.constexpr):
    mask_row = tl.program_id(0).to(tl.int64)
    row = tl.load(row_indices + mask_row).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = token < vocab_size
    word = tl.load(masks + mask_row * mask_stride + token // 32, mask=is_token, other=-1).to(tl.int32)
    is_forbidden = ((word >> (token % 32)) & 1) == 0
    forbidden = tl.full((BLOCK,), float("-inf"), tl.float32)
    tl.store(logits + row * logits_stride + token, forbidden, mask=is_token & is_forbidden)


def mask_logits(logits: Tensor, masks: Tensor, row_indices: Tensor) -> None:
    """Set logits fp32 [S, vocab] of forbidden tokens to -inf. Mutates `logits`.

    Args:
        masks: int32 [M, ceil(vocab / 32)], a set bit allows a token.
        row_indices: int32 [M], the row of logits that each mask is for.
    """
    mask_logits_call(logits, masks, row_indices).run()


def mask_logits_call(logits: Tensor, masks: Tensor, row_indices: Tensor) -> KernelCall:
    """Writes `logits`."""
    vocab_size = logits.shape[1]
    assert logits.stride(1) == masks.stride(1) == 1
    return KernelCall(
        mask_logits_kernel,
        (masks.shape[0], triton.cdiv(vocab_size, _BLOCK)),
        (logits, masks, row_indices, logits.stride(0), masks.stride(0), vocab_size),
        {"BLOCK": _BLOCK},
    )
