"""int8: a scale for each output, zero in the middle."""

from __future__ import annotations

from torch import Tensor

from ...kernels.quantized.matrix import QuantizedMatrix, layout_problem, pack
from ...kernels.torch_int8.quantize import quantize_rows
from .scheme import UnsupportedShapeError, by_rows


class Int8Scheme:
    """Half the memory of bf16. The error of a weight is at most 1/254 of the largest of its row."""

    name = "int8"
    bits = 8

    def quantize(self, weight: Tensor) -> QuantizedMatrix:
        """See `QuantizationScheme.quantize`; K must be a multiple of 16."""
        num_inputs = weight.shape[1]
        if layout_problem(self.bits, num_inputs, num_inputs) is not None:
            raise UnsupportedShapeError(f"int8 takes a multiple of 16 inputs, not {num_inputs}")
        return by_rows(weight, lambda rows: pack(8, *quantize_rows(rows), None))
