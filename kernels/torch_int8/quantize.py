"""Rows of floats as integers with one scale a row: what a row becomes does not depend on the rows beside it.

Weights take 8 bits. Activations take 16, as two int8 numbers:

    x = scale * (254 * high + low)        high and low from -127 to 127

With 8 bits for activations, the rounding of attention (which does depend on the batch) is enough to move values to the
next level here and there, and each such step is large: logprobs differ by tenths between a prompt computed in one piece
and in several. 16 bits make that a hundredth (docs/adr/0009).
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LEVELS = 127
HIGH_UNIT = 2 * MAX_LEVELS
ROW_LEVELS = MAX_LEVELS * HIGH_UNIT + MAX_LEVELS - 1
"""One less than fits: the largest high half must not be rounded up."""

_SMALLEST_SCALE = 1e-30
"""A row of zeros needs a scale to be divided by."""


def quantize_rows(x: Tensor, num_levels: int = MAX_LEVELS) -> tuple[Tensor, Tensor]:
    """Fp32 [N, K] to (int8 [N, K] within -num_levels .. num_levels, scales fp32 [N, 1])."""
    scales = _scales(x, num_levels)
    return (x / scales).round_().to(torch.int8), scales


def split_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Fp32 [T, K] to (int8 [2T, K]: the high halves of all rows, then the low ones; scales fp32 [T, 1]).

    A row that holds NaN or infinity gets a scale that is not finite, and so has every product of it."""
    scales = _scales(x, ROW_LEVELS)
    levels = (x / scales).round_()
    high = levels.mul(1 / HIGH_UNIT).round_()
    low = levels.sub_(high, alpha=HIGH_UNIT)
    return torch.cat((high, low)).to(torch.int8), scales


def _scales(x: Tensor, num_levels: int) -> Tensor:
    return x.abs().amax(1, keepdim=True).div_(num_levels).clamp_min_(_SMALLEST_SCALE)
