"""The C++ kernels for every instruction set of this machine, and matrices packed for them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quantization
from numpy.typing import NDArray

from ramet.kernels.cpu.isa import supported_isas
from ramet.kernels.cpu.memory import MemoryArena
from ramet.kernels.cpu.packed_matrix import SOURCE_BLOCKS, PackedMatrix, Source

Array = NDArray[Any]


@pytest.fixture(params=supported_isas())
def library(request: pytest.FixtureRequest, cpu_library_of: Callable[[str | None], ctypes.CDLL]) -> ctypes.CDLL:
    return cpu_library_of(request.param)


@pytest.fixture
def arena_of() -> Iterator[Callable[[ctypes.CDLL], MemoryArena]]:
    """Arenas that are closed after the test."""
    arenas: list[MemoryArena] = []

    def make(library: ctypes.CDLL) -> MemoryArena:
        arenas.append(MemoryArena(library))
        return arenas[-1]

    yield make
    for arena in arenas:
        arena.close()


@dataclass(frozen=True)
class SourceRows:
    """Rows of a checkpoint as it stores them, and what they mean in fp32."""

    source: Source
    rows: Array
    values: NDArray[np.float32]

    def pack(
        self, library: ctypes.CDLL, arena: MemoryArena, num_threads: int = 1, *, is_planes: bool = True
    ) -> PackedMatrix:
        matrix = PackedMatrix(library, arena, self.source, *self.values.shape, is_planes=is_planes)
        matrix.pack(self.rows, np.arange(len(self.values), dtype=np.int32), num_threads)
        matrix.finish(num_threads)
        return matrix


def _random_scales(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Fp16 numbers as their two bytes: of both signs and all magnitudes, zero and subnormal ones among them."""
    scales = rng.normal(size=shape) * rng.choice([0.0, 1e-7, 1e-4, 1e-2, 1.0], size=shape)
    return scales.astype(np.float16)[..., None].view(np.uint8)


def _random_rows(source: Source, num_rows: int, num_inputs: int, seed: int) -> SourceRows:
    rng = np.random.default_rng(seed)
    if source is Source.F32:
        values = rng.normal(size=(num_rows, num_inputs)).astype(np.float32)
        return SourceRows(source, values, values)
    values_per_block, block_bytes = SOURCE_BLOCKS[source]
    num_scales = {Source.Q4_0: 1, Source.Q8_0: 1, Source.Q4_1: 2, Source.Q4_K: 2}[source]
    blocks = rng.integers(0, 256, size=(num_rows, num_inputs // values_per_block, block_bytes), dtype=np.uint8)
    for idx in range(num_scales):
        blocks[..., 2 * idx : 2 * idx + 2] = _random_scales(rng, blocks.shape[:2])
    rows = blocks.reshape(num_rows, -1)
    values = np.array(gguf.dequantize(rows, Quantization[source.name]), dtype=np.float32)
    return SourceRows(source, rows, values)


@pytest.fixture(scope="session")
def random_rows() -> Callable[..., SourceRows]:
    """random_rows(source, num_rows, num_inputs, seed): blocks of random bytes under random finite scales."""
    return _random_rows
