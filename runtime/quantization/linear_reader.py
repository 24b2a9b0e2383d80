"""Brings a model's linear layers into a rounded form while it is loaded. Embeddings and the head stay as they are."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from ...kernels.dispatch import KERNELS
from ...kernels.interface import LinearWeight
from ...kernels.quantized.matrix import QuantizedMatrix, stack
from ..errors import InvalidConfigError
from ..models.errors import ModelLoadError
from ..models.parameters import LinearReader, ParameterReader, Piece
from ..weights.base import Checkpoint
from .packed_checkpoint import PackedCheckpoint
from .registry import SCHEMES
from .scheme import QuantizationScheme, UnsupportedShapeError

logger = logging.getLogger(__name__)
GIB = 1 << 30


class RoundingReader:
    """Rounds plain weights by a scheme."""

    def __init__(self, scheme: QuantizationScheme, source: str) -> None:
        self._scheme = scheme
        self._source = source

    def read(
        self,
        parameters: ParameterReader,
        names: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        pieces: Sequence[Piece | None],
    ) -> LinearWeight | None:
        """See `LinearReader.read`."""
        weight = parameters.read_stacked(names, shapes, pieces)
        try:
            matrix = self._scheme.quantize(weight)
        except UnsupportedShapeError as error:
            num_inputs = shapes[0][1]
            is_cut = num_inputs != weight.shape[1]
            cut = f" (tensor_parallel_size cuts the {num_inputs} inputs into parts of {weight.shape[1]})"
            raise ModelLoadError(
                f"{self._source}: {names[0]} cannot be loaded with quantization={self._scheme.name!r}: {error}"
                f"{cut if is_cut else ''}"
            ) from error
        self._check_finite(matrix, names, shapes, pieces)
        return matrix

    def _check_finite(
        self,
        matrix: QuantizedMatrix,
        names: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        pieces: Sequence[Piece | None],
    ) -> None:
        """A weight that is not finite makes the scale of its group so, and there are far fewer scales than weights."""
        is_row_finite = matrix.scales.isfinite().all(1)
        if bool(is_row_finite.all()):
            return
        first_row = int(is_row_finite.int().argmin())
        for name, shape, piece in zip(names, shapes, pieces, strict=True):
            num_rows = shape[0] if piece is None else piece.shape_of(shape)[0]
            if first_row < num_rows:
                raise ModelLoadError(f"{self._source}: tensor {name!r}: weights are not finite")
            first_row -= num_rows
        raise AssertionError("a matrix has the rows of its tensors")


class PackedReader:
    """Holds matrices as the checkpoint has them; those that cannot be held are left to be dequantised."""

    def __init__(self, checkpoint: PackedCheckpoint) -> None:
        self._checkpoint = checkpoint
        self._has_warned = False

    def read(
        self,
        parameters: ParameterReader,
        names: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        pieces: Sequence[Piece | None],
    ) -> LinearWeight | None:
        """See `LinearReader.read`."""
        num_packed = sum(self._checkpoint.is_packed(name) for name in names)
        if num_packed == 0:
            return None
        held: list[QuantizedMatrix] = []
        if num_packed == len(names):
            matrices = (self._held(name, piece, parameters.device) for name, piece in zip(names, pieces, strict=True))
            held = [matrix for matrix in matrices if matrix is not None]
        if len(held) < len(names):
            self._warn(names, parameters.dtype)
            return None
        for _ in names:
            parameters.advance()
        return stack(held)

    def _held(self, name: str, piece: Piece | None, device: torch.device) -> QuantizedMatrix | None:
        return self._checkpoint.unpacked(name, device, piece).held()

    def _warn(self, names: Sequence[str], dtype: torch.dtype) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        num_values, packing = self._checkpoint.packed_values(), self._checkpoint.packing
        logger.warning(
            "%s: %s: groups of inputs are not consecutive or not of one kind in %s (desc_act, a group size that "
            "divides no matrix, or groups cut by tensor_parallel_size): such matrices are dequantised to %s. Were all "
            "so, they would take %.2f GiB instead of %.2f",
            self._checkpoint.path,
            packing.name,
            ", ".join(names),
            str(dtype).removeprefix("torch."),
            num_values * dtype.itemsize / GIB,
            num_values * packing.bits / 8 / GIB,
        )


def linear_reader(checkpoint: Checkpoint, quantization: str | None, kernels_name: str) -> LinearReader | None:
    """What reads the linear layers of a checkpoint for these kernels; None: they are read like all else.

    Args:
        quantization: a key of SCHEMES, or None.

    Raises:
        InvalidConfigError: the weights are to be rounded, and are so already, or the kernels take no rounded ones.
    """
    takes_quantized = KERNELS[kernels_name].takes_quantized
    if quantization is not None:
        check_quantization(kernels_name, quantization)
        if isinstance(checkpoint, PackedCheckpoint):
            raise InvalidConfigError(
                f"quantization={quantization!r} rounds plain weights, and those of {checkpoint.path} are "
                f"{checkpoint.packing.name} already: leave quantization out"
            )
        return RoundingReader(SCHEMES[quantization], str(checkpoint.path))
    return PackedReader(checkpoint) if isinstance(checkpoint, PackedCheckpoint) and takes_quantized else None


def check_quantization(kernels_name: str, quantization: str | None) -> None:
    """Raises InvalidConfigError if weights are to be rounded that these kernels would not take."""
    if quantization is None or (kernels_name in KERNELS and KERNELS[kernels_name].takes_quantized):
        return
    takers = ", ".join(repr(name) for name, entry in KERNELS.items() if entry.takes_quantized)
    raise InvalidConfigError(
        f"quantization={quantization!r} goes with kernels {takers}, and {kernels_name!r} rounds weights in its own "
        "way; leave quantization out, or name other kernels"
    )
