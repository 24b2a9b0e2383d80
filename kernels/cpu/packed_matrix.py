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
    """Weights that are infinite or NaN."""


class WeightFormat(IntEnum):
    """Bits of a packed weight."""

    INT8 = 0
    INT4 = 1


class PackedMatrix:
    """A matrix [num_outputs, num_inputs] of 4- or 8-bit weights with a multiplier for each 32 inputs and row.

    Rows are zero until they are packed; `finish` ends the packing. What is computed with the matrix has the same bits
    however it lies in memory.

    Attributes:
        struct: what the library is given, once `finish` was called.
        num_coarse_groups: groups of 4 bits packed so far that lost precision, as others of their row are much larger.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        arena: MemoryArena,
        source: Source,
        num_outputs: int,
        num_inputs: int,
        *,
        is_planes: bool = True,
    ) -> None:
        """Room for rows packed from `source`, in the arena. Raises MemoryError as the arena does.

        Args:
            is_planes: keep the weights as bytes that products take as they are, 1 or 2 for each, rather than as small
                as they came. Faster, most of all for few tokens; while packing, both are held.
        """
        assert num_inputs % GROUP == 0
        self.source = source
        self.format = WeightFormat(library.ramet_source_format(source))
        self.num_coarse_groups = 0
        self._library = library
        self._arena = arena
        self.num_bytes: int = library.ramet_matrix_bytes(self.format, is_planes, num_outputs, num_inputs)
        self.struct = Matrix(num_outputs, num_inputs, self.format, is_planes, arena.allocate(self.num_bytes))
        self._groups = self.struct
        self._group_arena = MemoryArena(library)  # the system has its memory back at once, which a heap may not give
        if is_planes:
            num_group_bytes = library.ramet_matrix_bytes(self.format, False, num_outputs, num_inputs)
            groups = self._group_arena.allocate(num_group_bytes)
            self._groups = Matrix(num_outputs, num_inputs, self.format, False, groups)

    @property
    def shape(self) -> tuple[int, int]:
        return self.struct.num_outputs, self.struct.num_inputs

    def pack(self, rows: NDArray[np.uint8] | NDArray[np.float32], row_of: NDArray[np.int32], num_threads: int) -> None:
        """Fill rows of the matrix.

        Args:
            rows: contiguous [R, ...], the bytes of R rows as `source` has them.
            row_of: int32 [R], the row of the matrix each becomes.

        Raises:
            NotFiniteError: a scale is infinite or NaN.

        Cost: one pass, about 50 ns for each group of 32.
        """
        values_per_block, block_bytes = SOURCE_BLOCKS[self.source]
        assert rows.flags.c_contiguous
        assert rows.nbytes == len(row_of) * self.struct.num_inputs // values_per_block * block_bytes
        assert row_of.dtype == np.int32
        assert row_of.flags.c_contiguous
        assert len(row_of) == 0 or (row_of.min() >= 0 and row_of.max() < self.struct.num_outputs)
        num_coarse = ctypes.c_int32()
        if self._library.ramet_pack_rows(
            ctypes.byref(self._groups),
            self.source,
            rows.ctypes.data,
            row_of.ctypes.data,
            len(row_of),
            num_threads,
            ctypes.byref(num_coarse),
        ):
            raise NotFiniteError("weights are not finite")
        self.num_coarse_groups += num_coarse.value

    def finish(self, num_threads: int) -> None:
        """End the packing, once all rows are in. Raises MemoryError if there is none for a few rows of scratch."""
        if self._library.ramet_finish_matrix(ctypes.byref(self._groups), ctypes.byref(self.struct), num_threads):
            raise MemoryError("no memory to unpack weights")
        self._groups = self.struct
        self._group_arena.close()

    def unpack(self, rows: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float32]:
        """fp32 values of some rows: [len(rows), num_inputs]."""
        row_ids = np.ascontiguousarray(rows, dtype=np.int32)
        values = np.empty((len(row_ids), self.struct.num_inputs), dtype=np.float32)
        self._library.ramet_unpack_rows(
            ctypes.byref(self.struct), row_ids.ctypes.data, len(row_ids), values.ctypes.data
        )
        return values

    def multiply(self, x: NDArray[np.float32], num_threads: int) -> NDArray[np.float32]:
        """x [T, num_inputs], quantised to 16-bit integers, times the matrix: [T, num_outputs]."""
        assert x.dtype == np.float32
        assert x.flags.c_contiguous
        assert x.shape[1] == self.struct.num_inputs
        y = np.empty((x.shape[0], self.struct.num_outputs), dtype=np.float32)
        if self._library.ramet_multiply(
            ctypes.byref(self.struct), x.ctypes.data, x.shape[0], y.ctypes.data, num_threads
        ):
            raise MemoryError("no memory for the activations")
        return y
