"""int4: a scale and a zero for each group of 128 inputs, or of 64 or 32 where 128 does not divide them."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.quantized.matrix import QuantizedMatrix, layout_problem, pack
from .scheme import UnsupportedShapeError, by_rows

GROUP_LENS = (128, 64, 32)
MAX_LEVEL = 15
_SMALLEST_SCALE = 1e-30
"""A group of zeros needs a scale to be divided by."""


class Int4Scheme:
    """A quarter of the memory of bf16, and a tenth of that for scales and zeros of groups of 128.

    Rounds to the nearest level: large models bear it, small ones do not (SmolLM2 135M chooses another token at three
    of ten positions). A checkpoint that was calibrated (GPTQ, AWQ) is better."""

    name = "int4"
    bits = 4

    def quantize(self, weight: Tensor) -> QuantizedMatrix:
        """See `QuantizationScheme.quantize`; K must be a multiple of 32."""
        num_inputs = weight.shape[1]
        fitting = [size for size in GROUP_LENS if layout_problem(self.bits, num_inputs, size) is None]
        if not fitting:
            raise UnsupportedShapeError(f"int4 takes a multiple of {GROUP_LENS[-1]} inputs, not {num_inputs}")
        return by_rows(weight, lambda rows: _quantize(rows, fitting[0]))


def _quantize(rows: Tensor, group_len: int) -> QuantizedMatrix:
    """Levels spread over each group's values and 0, which is always one of them."""
    groups = rows.view(rows.shape[0], -1, group_len)
    low, high = groups.amin(2).clamp_max(0.0), groups.amax(2).clamp_min(0.0)
    scales = ((high - low) / MAX_LEVEL).clamp_min(_SMALLEST_SCALE)
    zeros = (-low / scales).round()
    codes = (groups / scales[:, :, None]).round_().add_(zeros[:, :, None]).clamp_(0, MAX_LEVEL)
    return pack(4, codes.to(torch.uint8).flatten(1), scales, zeros)
