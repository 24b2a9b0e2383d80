"""What a way of rounding weights must do, and what those that exist share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ...kernels.quantized.matrix import QuantizedMatrix, stack

CHUNK_VALUES = 1 << 24
"""Values rounded at a time: the temporaries stay far below the size of a large matrix."""


class UnsupportedShapeError(ValueError):
    """A matrix whose inputs the scheme cannot divide into groups. The message says which numbers would do."""


class QuantizationScheme(Protocol):
    """Rounds a matrix while a model is loaded.

    Attributes:
        name: the key in SCHEMES, a value of `EngineConfig.quantization`.
        bits: of a weight.
    """

    @property
    def name(self) -> str: ...

    @property
    def bits(self) -> int: ...

    def quantize(self, weight: Tensor) -> QuantizedMatrix:
        """Round a matrix [N, K] of any floating dtype, on its device. Deterministic; reads the matrix a few times.

        Raises:
            UnsupportedShapeError: the scheme does not take K inputs.
        """
        ...


def by_rows(weight: Tensor, quantize: Callable[[Tensor], QuantizedMatrix]) -> QuantizedMatrix:
    """Apply `quantize` to fp32 copies of some rows at a time."""
    step = max(1, CHUNK_VALUES // weight.shape[1])
    return stack([quantize(weight[start : start + step].float()) for start in range(0, weight.shape[0], step)])
