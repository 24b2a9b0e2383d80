"""Packed matrices hold what the checkpoint's blocks mean, to the precision of their integers (`layout.h`)."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import numpy as np
import pytest

from ramet.kernels.cpu.packed_matrix import NotFiniteError, PackedMatrix, Source

pytestmark = pytest.mark.compiler

SHAPES = [(1, 256), (16, 256), (33, 512), (50, 768)]
f32 = np.float32


def fields(source: Source, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales [R, groups, 1], minima and stored values [R, groups, 32] of GGUF blocks."""
    size = {Source.Q4_0: 18, Source.Q4_1: 20, Source.Q8_0: 34}[source]
    blocks = rows.reshape(len(rows), -1, size)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(f32)
    if source is Source.Q8_0:
        return scales, np.zeros_like(scales), blocks[..., 2:].view(np.int8).astype(np.int64)
    nibbles = blocks[..., -16:].astype(np.int64)
    values = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)
    if source is Source.Q4_0:
        return scales, f32(-8) * scales, values
    return scales, np.ascontiguousarray(blocks[..., 2:4]).view(np.float16).astype(f32), values


def inverse_of(units: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.where(units >= np.finfo(f32).tiny, f32(1) / units, f32(0))


def planned(source: Source, rows: np.ndarray) -> np.ndarray:
    """The weights that `layout.h` makes of the blocks, by its definition."""
    scales, minima, values = fields(source, rows)
    if source is Source.Q8_0:
        units = np.abs(scales).max(axis=1, keepdims=True) / f32(254)
        exact = scales * inverse_of(units)
        coarse = np.copysign(np.ceil(np.abs(exact) - f32(1e-3)), exact)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = np.where(coarse == 0, f32(0), exact / coarse)
        is_precise = np.abs(exact) >= 64
        requantized = np.rint(ratios * values.astype(f32)).astype(np.int64)
        weights = np.where(is_precise, np.rint(exact), coarse).astype(np.int64) * np.where(
            is_precise, values, requantized
        )
    else:
        reach = np.maximum(np.abs(minima), np.abs(minima + f32(15) * scales))
        units = reach.max(axis=1, keepdims=True) / f32(127 * 256)
        multipliers = np.rint(scales * inverse_of(units)).astype(np.int64)
        offsets = np.rint(minima * inverse_of(units) + f32(128)).astype(np.int64)
        weights = (multipliers * values + offsets) >> 8
        units = units * f32(256)
    assert np.abs(weights).max() <= (127 if source is not Source.Q8_0 else 128 * 254)
    return (units * weights.astype(f32)).reshape(len(rows), -1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("source", [Source.Q4_0, Source.Q4_1, Source.Q8_0], ids=lambda source: source.name)
def test_blocks_become_the_integers_of_the_definition(library, arena_of, random_rows, source, shape):
    rows = random_rows(source, *shape, seed=1)
    matrix = rows.pack(library, arena_of(library))
    assert np.array_equal(matrix.unpack(range(shape[0])), planned(source, rows.rows))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("source", [Source.Q4_0, Source.Q4_1, Source.Q4_K], ids=lambda source: source.name)
def test_4_bits_are_kept_to_within_a_254th_of_what_a_row_reaches(library, arena_of, random_rows, source, shape):
    """Half of a step of 8 bits, and the rounding of the multiplier, 15 times at most."""
    rows = random_rows(source, *shape, seed=2)
    unpacked = rows.pack(library, arena_of(library)).unpack(range(shape[0]))
    # Random values fill a group: a row's reach is little more than the largest of them.
    reach = np.abs(rows.values).max(axis=1, keepdims=True) * 1.3
    assert np.all(np.abs(unpacked - rows.values) <= reach / 254 + 9 * reach / (127 * 256))
    assert shape[0] == 1 or np.abs(rows.values).max() > 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_8_bits_are_kept_to_within_a_quarter_of_the_largest_step_of_a_row(library, arena_of, random_rows, shape):
    """What is rounded is the multiplier: half of a 254th of the largest scale, times 128 at most."""
    rows = random_rows(Source.Q8_0, *shape, seed=2)
    scales, _, _ = fields(Source.Q8_0, rows.rows)
    unpacked = rows.pack(library, arena_of(library)).unpack(range(shape[0]))
    assert np.all(np.abs(unpacked - rows.values) <= np.abs(scales).max(axis=1) * 0.2521)


@pytest.mark.parametrize("ratio", [1, 16, 150, 600])
@pytest.mark.parametrize("source", [Source.F32, Source.Q8_0], ids=lambda source: source.name)
def test_8_bits_keep_groups_that_are_small_beside_others_of_their_row(library, arena_of, source, ratio):
    rng = np.random.default_rng(12)
    values = rng.normal(size=(64, 128)).astype(f32)
    values[:, 32:64] *= ratio
    rows = values if source is Source.F32 else gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    exact = values if source is Source.F32 else np.array(gguf.dequantize(rows, gguf.GGMLQuantizationType.Q8_0))
    matrix = PackedMatrix(library, arena_of(library), source, 64, 128)
    matrix.pack(np.ascontiguousarray(rows), np.arange(64, dtype=np.int32), 1)
    matrix.finish(1)
    small = np.r_[0:32, 64:128]
    error = np.linalg.norm((matrix.unpack(range(64)) - exact)[:, small], axis=1)
    assert np.all(error <= 0.03 * np.linalg.norm(exact[:, small], axis=1))


@pytest.mark.parametrize(("ratio", "is_coarse"), [(1, False), (4, False), (64, True)])
def test_4_bits_that_a_plane_cannot_hold_are_counted(library, arena_of, ratio, is_coarse):
    values = np.random.default_rng(13).normal(size=(32, 128)).astype(f32)
    values[:, 32:64] *= ratio
    matrix = PackedMatrix(library, arena_of(library), Source.Q4_1, 32, 128)
    rows = gguf.quantize(values, gguf.GGMLQuantizationType.Q4_1)
    matrix.pack(np.ascontiguousarray(rows), np.arange(32, dtype=np.int32), 2)
    assert matrix.num_coarse_groups == (3 * 32 if is_coarse else 0)


def packed_floats(library, arena_of, values: np.ndarray) -> np.ndarray:
    matrix = PackedMatrix(library, arena_of(library), Source.F32, *values.shape)
    matrix.pack(values, np.arange(len(values), dtype=np.int32), 1)
    matrix.finish(1)
    return matrix.unpack(range(len(values)))


def test_floats_become_8_bits_with_the_scale_of_their_group(library, arena_of):
    rng = np.random.default_rng(3)
    values = (rng.normal(size=(40, 320)) * rng.choice([1e-3, 0.02, 1.0, 500.0], size=(40, 320))).astype(f32)
    groups = values.reshape(40, -1, 32)
    largest = np.abs(groups).max(-1, keepdims=True) / f32(127)
    units = largest.max(axis=1, keepdims=True) / f32(254)
    scales = units * np.ceil(largest * inverse_of(units) - f32(1e-3))
    expected = np.clip(np.rint(groups / scales), -127, 127) * scales
    np.testing.assert_allclose(packed_floats(library, arena_of, values), expected.reshape(values.shape), rtol=1e-6)


def test_floats_that_are_a_multiple_of_their_scale_are_kept(library, arena_of):
    """So a matrix that was unpacked can be packed again, and an 8-bit checkpoint in floats loses next to nothing."""
    rng = np.random.default_rng(4)
    levels = rng.integers(-127, 128, size=(32, 4, 32))
    levels[:, :, 7] = rng.choice([-127, 127], size=(32, 4))
    scales = rng.uniform(1e-3, 10, size=(32, 1, 1)).astype(f32)
    values = (levels.astype(f32) * scales).reshape(32, 128)
    np.testing.assert_allclose(packed_floats(library, arena_of, values), values, rtol=1e-6)


@pytest.mark.parametrize("magnitude", [0.0, 1e-42, 1e-30, 1e-9, 1e-6, 8e6, 1e30, 3e38])
def test_the_smallest_and_largest_floats(library, arena_of, magnitude):
    """What is next to nothing may become zero, and never anything else."""
    values = (np.linspace(-1, 1, 64, dtype=f32) * f32(magnitude)).reshape(1, 64)
    unpacked = packed_floats(library, arena_of, values)
    assert np.isfinite(unpacked).all()
    assert np.abs(unpacked - values).max() <= max(magnitude * 2**-7, 1e-33)


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
        matrix.finish(num_threads)
        images.append(matrix.unpack(range(60)))
    assert np.array_equal(images[0][order[:24]], first.pack(library, arena_of(library)).unpack(range(24)))
    assert np.array_equal(images[0][order[24:48]], second.pack(library, arena_of(library)).unpack(range(24)))
    assert not images[0][order[48:]].any()
    assert np.array_equal(images[0], images[1])
    assert np.array_equal(images[0], images[2])


def test_no_rows_are_packed_and_unpacked(library, arena_of):
    matrix = PackedMatrix(library, arena_of(library), Source.Q8_0, 32, 64)
    matrix.pack(np.empty((0, 68), dtype=np.uint8), np.empty(0, dtype=np.int32), 2)
    matrix.finish(2)
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
