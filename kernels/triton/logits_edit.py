"""Bans, logit biases and penalties: changes to a few logits of a row, each token once.

    bias                      l + bias                                     a ban is a bias of -inf
    repetition (Keskar 2019)  l / r if l > 0 else l * r                    tokens of prompt and output
    presence and frequency    l - (presence + frequency * count)           tokens of the output, with their number

The edits of all rows stand one after another, `row_indices` names the row of each. A row's token must not come twice:
two programs would write it. Whoever packs them has merged its bias and its count. A program owns BLOCK edits:

    edits:  | row 0, token 7 | row 0, token 9 | row 2, token 7 | ...
            count:  -1 not seen, only a bias;   0 in the prompt;   n > 0 times in the output

The arithmetic is that of the CPU's samplers, rounded alike: fp32, the sum of penalties in fp64.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import IS_INTERPRETED, KernelCall

_BLOCK = 4096 if IS_INTERPRETED else 256


@triton.jit(do_not_specialize=["num_edits"])
def edit_logits_kernel(
    logits, row_indices, token_ids, biases, counts, repetition, presence, frequency, logits_stride, num_edits,
    BLOCK: tl.constexpr,
):  # fmt: skip
    edit = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_edit = edit < num_edits
    row = tl.load(row_indices + edit, mask=is_edit, other=0).to(tl.int64)
    token = tl.load(token_ids + edit, mask=is_edit, other=0).to(tl.int64)
    count = tl.load(counts + edit, mask=is_edit, other=-1).to(tl.int32)
    place = logits + row * logits_stride + token
    logit = tl.load(place, mask=is_edit, other=0.0).to(tl.float32)
    logit += tl.load(biases + edit, mask=is_edit, other=0.0).to(tl.float32)
    penalty = tl.load(repetition + row, mask=is_edit, other=1.0).to(tl.float32)
    repeated = tl.where(logit > 0.0, tl.div_rn(logit, penalty), logit * penalty)
    logit = tl.where((count >= 0) & (penalty != 1.0), repeated, logit)
    once = tl.load(presence + row, mask=is_edit, other=0.0).to(tl.float64)
    each = tl.load(frequency + row, mask=is_edit, other=0.0).to(tl.float64)
    logit -= tl.where(count > 0, once + each * count.to(tl.float64), 0.0).to(tl.float32)
    tl.store(place, logit, mask=is_edit)


def edit_logits(
    logits: Tensor,
    row_indices: Tensor,
    token_ids: Tensor,
    biases: Tensor,
    counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Apply E edits to logits fp32 [S, vocab]. Mutates `logits`.

    Args:
        row_indices, token_ids: int32 [E]; no pair twice, ids below the vocabulary's size.
        biases: fp32 [E].
        counts: int32 [E], -1 for a token that neither prompt nor output has.
        repetition: fp32 [S]; 1 changes nothing.
        presence, frequency: fp64 [S]; 0 changes nothing.
    """
    edit_logits_call(logits, row_indices, token_ids, biases, counts, repetition, presence, frequency).run()


def edit_logits_call(
    logits: Tensor,
    row_indices: Tensor,
    token_ids: Tensor,
    biases: Tensor,
    counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> KernelCall:
    """Writes `logits`."""
    num_edits = token_ids.shape[0]
    return KernelCall(
        edit_logits_kernel,
        (triton.cdiv(num_edits, _BLOCK),),
        (
            *(logits, row_indices, token_ids, biases, counts, repetition, presence, frequency),
            *(logits.stride(0), num_edits),
        ),
        {"BLOCK": _BLOCK},
    )
