"""PackedMatrix: a weight matrix in the layout the C++ kernels read (`src/layout.h`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from .library import Matrix
from .memory import MemoryArena

GROUP = 32


class Source(IntEnum):
    """What rows of a checkpoint can be packed from: fp32, or blocks of a GGUF file as they lie there."""

    F32 = 0
    Q4_0 = 1
    Q4_1 = 2
    Q8_0 = 3
    Q4_K = 4


SOURCE_BLOCKS: dict[Source, tuple[int, int]] = {
    Source.F32: (1, 4),
    Source.Q4_0: (32, 18),
    Source.Q4_1: (32, 20),
    Source.Q8_0: (32, 34),
    Source.Q4_K: (256, 144),
}
"""(values, bytes) of a block."""


class NotFiniteError(ValueError):
    """Weights that are infinite, NaN, or too large."""


class WeightFormat(IntEnum):
    """Bits and meaning of a packed weight."""

    INT8 = 0
    INT4 = 1
    INT4_MIN = 2


class PackedMatrix:
    """A matrix [num_outputs, num_inputs] of 4- or 8-bit weights in groups of 32 inputs.

    The memory is the arena's. Rows are zero until they are packed.

    Attributes:
        struct: what the library is given.
    """

    def __init__(
        self, library: ctypes.CDLL, arena: MemoryArena, source: Source, num_outputs: int, num_inputs: int
    ) -> None:
        """Room for rows packed from `source`. Raises MemoryError as the arena does."""
        assert num_inputs % GROUP == 0
        self.source = source
        self.format = WeightFormat(library.ramet_source_format(source))
        self._library = library
        self._arena = arena
        self.num_bytes: int = library.ramet_matrix_bytes(self.format, num_outputs, num_inputs)
        self.struct = Matrix(num_outputs, num_inputs, self.format, arena.allocate(self.num_bytes))

    @property
    def shape(self) -> tuple[int, int]:
        return self.struct.num_outputs, self.struct.num_inputs

    def pack(self, rows: NDArray[np.uint8] | NDArray[np.float32], row_of: NDArray[np.int32], num_threads: int) -> None:
        """Fill rows of the matrix.

        Args:
            rows: contiguous [R, ...], the bytes of R rows as `source` has them.
            row_of: int32 [R], the row of the matrix each becomes.

        Raises:
            NotFiniteError: a scale is infinite or NaN, or fp32 values are too large for an fp16 scale.

        Cost: one pass, about 50 ns for each group of 32.
        """
        values_per_block, block_bytes = SOURCE_BLOCKS[self.source]
        assert rows.flags.c_contiguous
        assert rows.nbytes == len(row_of) * self.struct.num_inputs // values_per_block * block_bytes
        assert row_of.dtype == np.int32
        assert row_of.flags.c_contiguous
        assert len(row_of) == 0 or (row_of.min() >= 0 and row_of.max() < self.struct.num_outputs)
        if self._library.ramet_pack_rows(
            ctypes.byref(self.struct), self.source, rows.ctypes.data, row_of.ctypes.data, len(row_of), num_threads
        ):
            raise NotFiniteError("weights are not finite, or too large to be quantised with an fp16 scale")

    def unpack(self, rows: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float32]:
        """fp32 values of some rows: [len(rows), num_inputs]."""
        row_ids = np.ascontiguousarray(rows, dtype=np.int32)
        values = np.empty((len(row_ids), self.struct.num_inputs), dtype=np.float32)
        self._library.ramet_unpack_rows(
            ctypes.byref(self.struct), row_ids.ctypes.data, len(row_ids), values.ctypes.data
        )
        return values

    def multiply(self, x: NDArray[np.float32], num_threads: int) -> NDArray[np.float32]:
        """x [T, num_inputs], quantised to int8 groups, times the matrix: [T, num_outputs]."""
        assert x.dtype == np.float32
        assert x.flags.c_contiguous
        assert x.shape[1] == self.struct.num_inputs
        y = np.empty((x.shape[0], self.struct.num_outputs), dtype=np.float32)
        if self._library.ramet_multiply(
            ctypes.byref(self.struct), x.ctypes.data, x.shape[0], y.ctypes.data, num_threads
        ):
            raise MemoryError("no memory for the activations")
        return y
