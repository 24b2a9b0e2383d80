"""Products with a QuantizedMatrix in plain torch: some outputs at a time are dequantised and multiplied.

Saves memory, not time: on a CPU a step takes longer than with plain weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .matrix import QuantizedMatrix

CHUNK_VALUES = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Values dequantised at a time: on a CPU they stay in its cache; on a GPU a product of so many is worth a launch."""

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def quantized_linear(
    x: Tensor,
    weight: QuantizedMatrix,
    bias: Tensor | None,
    linear: Linear = F.linear,
    dequantize: Callable[[QuantizedMatrix, torch.dtype], Tensor] = QuantizedMatrix.dequantize,
) -> Tensor:
    """x [T, K] times the weight [N, K] transposed, plus bias [N]: [T, N], in the dtype of x.

    Args:
        linear: the product of plain tensors.
        dequantize: makes the plain tensor of some outputs."""
    num_outputs, num_inputs = weight.shape
    step = max(1, CHUNK_VALUES[x.device.type] // num_inputs)
    if step >= num_outputs:
        return linear(x, dequantize(weight, x.dtype), bias)
    out = x.new_empty((x.shape[0], num_outputs))
    for start in range(0, num_outputs, step):
        end = min(start + step, num_outputs)
        part = None if bias is None else bias[start:end]
        out[:, start:end] = linear(x, dequantize(weight.rows(start, end), x.dtype), part)
    return out
