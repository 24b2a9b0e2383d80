"""Packed matrices hold what the checkpoint's blocks mean: against the dequantisation of the package `gguf`."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from ramet.kernels.cpu.packed_matrix import NotFiniteError, PackedMatrix, Source

pytestmark = pytest.mark.compiler

SHAPES = [(1, 256), (16, 256), (33, 512), (50, 768)]
AS_THEY_ARE = [Source.Q4_0, Source.Q4_1, Source.Q8_0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("source", AS_THEY_ARE, ids=lambda source: source.name)
def test_blocks_keep_their_values(library, arena_of, random_rows, source, shape):
    rows = random_rows(source, *shape, seed=1)
    matrix = rows.pack(library, arena_of(library))
    assert np.array_equal(matrix.unpack(range(shape[0])), rows.values)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_q4_k_keeps_its_values_up_to_the_products_of_its_scales(library, arena_of, random_rows, shape):
    """scale = d * scale6 and minimum = dmin * min6 become fp16: half a unit of their last place, times 15 at most."""
    rows = random_rows(Source.Q4_K, *shape, seed=2)
    unpacked = rows.pack(library, arena_of(library)).unpack(range(shape[0]))
    groups, expected = unpacked.reshape(-1, 32), rows.values.reshape(-1, 32)
    span = np.abs(expected).max(1) + np.ptp(expected, axis=1)  # at least scale * 15 and the minimum
    assert np.all(np.abs(groups - expected).max(1) <= span * 2**-10 + 16 * 2**-25)
    assert shape[0] == 1 or np.abs(expected).max() > 10


def test_floats_become_8_bits_with_the_scale_of_their_group(library, arena_of):
    rng = np.random.default_rng(3)
    values = (rng.normal(size=(40, 320)) * rng.choice([1e-3, 0.02, 1.0, 500.0], size=(40, 320))).astype(np.float32)
    matrix = PackedMatrix(library, arena_of(library), Source.F32, *values.shape)
    matrix.pack(values, np.arange(40, dtype=np.int32), 1)
    groups = values.reshape(40, -1, 32)
    scales = (np.abs(groups).max(-1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
    expected = np.clip(np.rint(groups / scales), -127, 127) * scales
    assert np.array_equal(matrix.unpack(range(40)), expected.reshape(values.shape))


def test_floats_that_are_a_multiple_of_their_scale_are_kept(library, arena_of):
    """So a matrix that was unpacked can be packed again, and an 8-bit checkpoint in floats loses nothing."""
    rng = np.random.default_rng(4)
    levels = rng.integers(-127, 128, size=(32, 4, 32))
    levels[:, :, 7] = rng.choice([-127, 127], size=(32, 4))
    scales = rng.uniform(1e-3, 10, size=(32, 4, 1)).astype(np.float16).astype(np.float32)
    values = (levels.astype(np.float32) * scales).reshape(32, 128)
    matrix = PackedMatrix(library, arena_of(library), Source.F32, *values.shape)
    matrix.pack(values, np.arange(32, dtype=np.int32), 1)
    assert np.array_equal(matrix.unpack(range(32)), values)


@pytest.mark.parametrize("magnitude", [0.0, 1e-42, 1e-30, 1e-9, 1e-6, 8e6])
def test_the_smallest_and_largest_floats(library, arena_of, magnitude):
    """Below what a scale in fp16 can hold, a group is rounded to that scale's step, and never becomes anything else."""
    values = (np.linspace(-1, 1, 64, dtype=np.float32) * np.float32(magnitude)).reshape(1, 64)
    matrix = PackedMatrix(library, arena_of(library), Source.F32, 1, 64)
    matrix.pack(values, np.zeros(1, dtype=np.int32), 1)
    unpacked = matrix.unpack([0])
    assert np.isfinite(unpacked).all()
    smallest_step = 2.0**-24
    assert np.abs(unpacked - values).max() <= max(magnitude * 2**-7, 127 * smallest_step)


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E00, 0xFFFF], ids=hex)
@pytest.mark.parametrize(
    ("source", "position"),
    [(Source.Q4_0, 0), (Source.Q4_1, 0), (Source.Q4_1, 2), (Source.Q8_0, 0), (Source.Q4_K, 0), (Source.Q4_K, 2)],
    ids=str,
)
def test_scales_that_are_no_numbers_are_refused(library, arena_of, random_rows, source, position, bits):
    rows = random_rows(source, 20, 256, seed=9)
    rows.rows[11, position : position + 2] = [bits & 255, bits >> 8]
    with pytest.raises(NotFiniteError):
        rows.pack(library, arena_of(library), num_threads=2)


def test_what_no_fp16_scale_can_hold_is_refused(library, arena_of, random_rows):
    values = np.ones((3, 64), dtype=np.float32)
    values[1, 40] = 1e7
    with pytest.raises(NotFiniteError):
        PackedMatrix(library, arena_of(library), Source.F32, 3, 64).pack(values, np.arange(3, dtype=np.int32), 1)
    rows = random_rows(Source.Q4_K, 1, 256, seed=10)
    rows.rows[0, :4] = np.array([60000.0, 0.0], dtype=np.float16).view(np.uint8)
    rows.rows[0, 4:16] = 63
    with pytest.raises(NotFiniteError):
        rows.pack(library, arena_of(library))


@pytest.mark.parametrize("source", list(Source), ids=lambda source: source.name)
def test_rows_go_where_they_are_sent_whatever_the_number_of_threads(library, arena_of, random_rows, source):
    """Two tensors woven into one matrix, as gate and up are, with rows left out: those stay zero."""
    first, second = random_rows(source, 24, 256, seed=5), random_rows(source, 24, 256, seed=6)
    order = np.random.default_rng(7).permutation(60).astype(np.int32)
    images = []
    for num_threads in (1, 2, 3):
        matrix = PackedMatrix(library, arena_of(library), source, 60, 256)
        matrix.pack(first.rows, np.ascontiguousarray(order[:24]), num_threads)
        matrix.pack(second.rows, np.ascontiguousarray(order[24:48]), num_threads)
        images.append(matrix.unpack(range(60)))
    assert np.array_equal(images[0][order[:24]], first.pack(library, arena_of(library)).unpack(range(24)))
    assert np.array_equal(images[0][order[24:48]], second.pack(library, arena_of(library)).unpack(range(24)))
    assert not images[0][order[48:]].any()
    assert np.array_equal(images[0], images[1])
    assert np.array_equal(images[0], images[2])


def test_no_rows_are_packed_and_unpacked(library, arena_of):
    matrix = PackedMatrix(library, arena_of(library), Source.Q8_0, 32, 64)
    matrix.pack(np.empty((0, 68), dtype=np.uint8), np.empty(0, dtype=np.int32), 2)
    assert matrix.unpack([]).shape == (0, 64)
    assert not matrix.unpack(range(32)).any()


def test_memory_of_an_arena_is_zeroed_and_aligned(library, arena_of):
    arena = arena_of(library)
    for num_bytes in (1, 63, 64, 65, 4096, 70 << 20, 5):
        address = arena.allocate(num_bytes)
        assert address % 64 == 0
        for offset in {0, num_bytes - 1}:
            byte = ctypes.c_uint8.from_address(address + offset)
            assert byte.value == 0
            byte.value = 255


OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


@pytest.mark.skipif(
    not OVERCOMMIT.exists() or OVERCOMMIT.read_text(encoding="ascii").strip() == "1",
    reason="this system promises any amount of memory",
)
def test_more_memory_than_the_machine_has_is_refused(library, arena_of):
    """Though its addresses would do: better refused now than killed when it is written."""
    with pytest.raises(MemoryError, match="bytes"):
        arena_of(library).allocate(16 << 40)


@pytest.mark.parametrize("num_bytes", [1 << 60, (1 << 64) + 4096, 1 << 70])
def test_memory_that_no_machine_has_is_refused(library, arena_of, num_bytes):
    with pytest.raises(MemoryError, match="bytes"):
        arena_of(library).allocate(num_bytes)
