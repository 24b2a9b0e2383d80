"""Products with packed matrices: right, and of the same bits whatever is computed beside a row."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from ramet.kernels.cpu.isa import supported_isas
from ramet.kernels.cpu.packed_matrix import PackedMatrix, Source

pytestmark = pytest.mark.compiler

SHAPES = [(32, 32), (1, 64), (17, 96), (95, 288), (160, 576)]
MAX_TOKENS = 64
SOURCES = list(Source)


def shape_for(source: Source, shape: tuple[int, int]) -> tuple[int, int]:
    """A matrix of Q4_K has blocks of 256 inputs."""
    return (shape[0], -(-shape[1] // 256) * 256) if source is Source.Q4_K else shape


def activations(num_tokens: int, num_inputs: int, seed: int) -> np.ndarray:
    """Rows of all magnitudes, with an outlier here and there, as hidden states have them, and a row of zeros."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_tokens, num_inputs)) * rng.choice([1e-3, 1.0, 30.0], size=(num_tokens, 1))
    x[rng.random(x.shape) < 0.01] *= 50
    x[num_tokens // 2] = 0
    return x.astype(np.float32)


def dequantized(library: ctypes.CDLL, x: np.ndarray) -> np.ndarray:
    """What the kernels see of x."""
    seen = np.empty_like(x)
    assert library.ramet_quantize(x.ctypes.data, *x.shape, seen.ctypes.data) == 0
    return seen


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_product_of_what_is_stored(library, arena_of, random_rows, source, shape):
    rows = random_rows(source, *shape_for(source, shape), seed=1)
    matrix = rows.pack(library, arena_of(library))
    weights = matrix.unpack(range(shape[0])).astype(np.float64)
    x = activations(MAX_TOKENS, weights.shape[1], seed=2)
    seen = dequantized(library, x).astype(np.float64)
    # The sum is exact: what is rounded is each weight and activation that is compared with, and the result.
    bound = (np.abs(seen) @ np.abs(weights).T) * 2.0**-21 + 1e-30
    assert np.all(np.abs(matrix.multiply(x, 1) - seen @ weights.T) <= bound)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_planes_and_groups_have_the_same_bits(library, arena_of, random_rows, source, shape):
    rows = random_rows(source, *shape_for(source, shape), seed=21)
    planes, groups = (rows.pack(library, arena_of(library), is_planes=is_planes) for is_planes in (True, False))
    assert planes.num_bytes > groups.num_bytes or shape[1] % 64
    assert np.array_equal(planes.unpack(range(shape[0])), groups.unpack(range(shape[0])))
    for num_tokens in (1, 3, 20):
        x = activations(num_tokens, rows.values.shape[1], seed=num_tokens)
        assert np.array_equal(planes.multiply(x, 2), groups.multiply(x, 2))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_row_has_the_same_bits_in_every_batch(library, arena_of, random_rows, source):
    """Every number of tokens up to 40, every row alone, every place in a tile."""
    rows = random_rows(source, 70, 256, seed=3)
    matrix = rows.pack(library, arena_of(library))
    x = activations(MAX_TOKENS, 256, seed=4)
    expected = matrix.multiply(x, 1)
    assert expected.any()
    for num_tokens in range(1, 41):
        assert np.array_equal(matrix.multiply(x[:num_tokens], 1), expected[:num_tokens]), num_tokens
    for row in range(MAX_TOKENS):
        assert np.array_equal(matrix.multiply(x[row : row + 1], 1)[0], expected[row]), row
    for order in (np.arange(MAX_TOKENS)[::-1], np.roll(np.arange(MAX_TOKENS), 5)):
        assert np.array_equal(matrix.multiply(np.ascontiguousarray(x[order]), 1), expected[order])


@pytest.mark.parametrize("num_tokens", [1, 7, 16, 23])
@pytest.mark.parametrize("num_outputs", [1, 31, 33, 170])
def test_threads_change_nothing(library, arena_of, random_rows, num_outputs, num_tokens):
    for source in (Source.Q4_1, Source.Q8_0):
        matrix = random_rows(source, num_outputs, 96, seed=5).pack(library, arena_of(library))
        x = activations(num_tokens, 96, seed=6)
        expected = matrix.multiply(x, 1)
        for num_threads in (2, 3, 7):
            assert np.array_equal(matrix.multiply(x, num_threads), expected)


def integer_rows(source: Source, levels: np.ndarray) -> np.ndarray:
    """Rows of blocks with scale 1 (and minimum 0) whose values are the levels as they are stored, before any offset."""
    blocks = levels.reshape(levels.shape[0], -1, 32).astype(np.uint8)
    numbers = np.array([1.0, 0.0] if source is Source.Q4_1 else [1.0], dtype=np.float16).view(np.uint8)
    header = np.broadcast_to(numbers, (*blocks.shape[:2], len(numbers)))
    values = blocks if source is Source.Q8_0 else blocks[..., :16] | blocks[..., 16:] << 4
    return np.concatenate([header, values], axis=-1).reshape(levels.shape[0], -1)


@pytest.mark.parametrize("num_inputs", [128, 8192])
@pytest.mark.parametrize("num_tokens", [1, 3, 4, 16, 33])
@pytest.mark.parametrize("source", [Source.Q8_0, Source.Q4_0, Source.Q4_1], ids=lambda source: source.name)
def test_sums_of_integers_are_exact_up_to_the_largest_there_are(library, arena_of, source, num_tokens, num_inputs):
    """Also where all products are as large as they get, and have one sign."""
    rng = np.random.default_rng(8)
    largest = 256 if source is Source.Q8_0 else 16
    levels = rng.integers(0, largest, size=(48, num_inputs))
    levels[0], levels[1], levels[2], levels[4] = 0, largest - 1, largest // 2, 127 % largest
    levels[3, ::2], levels[3, 1::2] = 0, largest - 1
    matrix = PackedMatrix(library, arena_of(library), source, 48, num_inputs)
    matrix.pack(np.ascontiguousarray(integer_rows(source, levels)), np.arange(48, dtype=np.int32), 1)
    matrix.finish(1)
    x = rng.normal(size=(num_tokens, num_inputs)).astype(np.float32)
    x[0], x[-1] = 1.0, np.where(rng.random(num_inputs) < 0.5, 1.0, -1.0)
    weights, seen = matrix.unpack(range(48)).astype(np.float64), dequantized(library, x).astype(np.float64)
    largest_sum = np.abs(seen) @ np.abs(weights).T
    assert largest_sum.max() == pytest.approx(np.abs(weights[1]).sum(), rel=0.01) or source is not Source.Q4_1
    assert np.all(np.abs(matrix.multiply(x, 1) - seen @ weights.T) <= largest_sum * 2.0**-21)


@pytest.mark.skipif("amx" not in supported_isas(), reason="needs a processor with AMX")
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_matrix_unit_gives_the_bits_of_the_vectors(
    cpu_library_of: Callable[[str], ctypes.CDLL], arena_of, random_rows, source
):
    rows = random_rows(source, 70, 512, seed=9)
    x = activations(MAX_TOKENS, 512, seed=10)
    products = []
    for isa in ("amx", "avx512"):
        library = cpu_library_of(isa)
        assert library.ramet_uses_amx() == (isa == "amx")
        matrix = rows.pack(library, arena_of(library))
        products.append([matrix.multiply(x[:num_tokens], 2) for num_tokens in (1, 8, 16, 27, MAX_TOKENS)])
    for mine, other in zip(*products, strict=True):
        assert np.array_equal(mine, other)


def test_no_tokens_have_no_products(library, arena_of, random_rows):
    matrix = random_rows(Source.Q8_0, 32, 64, seed=11).pack(library, arena_of(library))
    assert matrix.multiply(np.empty((0, 64), dtype=np.float32), 2).shape == (0, 32)
