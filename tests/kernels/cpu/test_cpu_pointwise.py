"""What happens to a token between matrix products, against exact arithmetic, at ordinary and at extreme values."""

from __future__ import annotations

import numpy as np
import pytest

from ramet.kernels.cpu.packed_matrix import Source

pytestmark = pytest.mark.compiler

MAX_ACTIVATION = 32512


def quantized(library, x: np.ndarray) -> np.ndarray:
    seen = np.full_like(x, np.nan)
    assert library.ramet_quantize(x.ctypes.data, *x.shape, seen.ctypes.data) == 0
    return seen


def silu_mul(library, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    y = np.full_like(gate, np.nan)
    library.ramet_silu_mul(gate.ctypes.data, up.ctypes.data, gate.size, y.ctypes.data)
    return y


@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("size", [16, 48, 64, 576])
def test_rms_norm(library, size, magnitude):
    rng = np.random.default_rng(size)
    x = (rng.normal(size=(5, size)) * magnitude).astype(np.float32)
    x[3] = 0
    weight = rng.normal(size=size).astype(np.float32)
    y = np.full_like(x, np.nan)
    library.ramet_rms_norm(x.ctypes.data, weight.ctypes.data, 5, size, 1e-5, y.ctypes.data)
    exact = x.astype(np.float64)
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + np.float32(1e-5)) * weight
    np.testing.assert_allclose(y, exact, rtol=2e-6, atol=1e-30)
    alone = np.empty_like(y[4])
    library.ramet_rms_norm(x[4].ctypes.data, weight.ctypes.data, 1, size, 1e-5, alone.ctypes.data)
    assert np.array_equal(alone, y[4])


@pytest.mark.parametrize("half", [1, 8, 16, 20, 32, 40])
@pytest.mark.parametrize("head_dim", [16, 64, 80])
def test_rotate(library, head_dim, half):
    if 2 * half > head_dim:
        half = head_dim // 2
    rng = np.random.default_rng(half)
    heads = rng.normal(size=(3, head_dim)).astype(np.float32)
    angles = rng.uniform(-3, 3, size=half)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    rotated = heads.copy()
    library.ramet_rotate(rotated.ctypes.data, 3, head_dim, cos.ctypes.data, sin.ctypes.data, half)
    exact = heads.astype(np.float64)
    first, second = exact[:, :half].copy(), exact[:, half : 2 * half].copy()
    exact[:, :half] = first * cos - second * sin
    exact[:, half : 2 * half] = second * cos + first * sin
    np.testing.assert_allclose(rotated, exact, rtol=0, atol=1e-6)
    assert np.array_equal(rotated[:, 2 * half :], heads[:, 2 * half :])


def test_silu_mul(library):
    rng = np.random.default_rng(1)
    gate = np.concatenate([np.linspace(-30, 30, 480), rng.normal(size=480)]).astype(np.float32)
    up = rng.normal(size=gate.size).astype(np.float32)
    exact = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64))) * up
    np.testing.assert_allclose(silu_mul(library, gate, up), exact, rtol=1e-6, atol=1e-30)


def test_silu_mul_far_from_zero_is_its_limit(library):
    """No overflow on the way to nothing, nor to the number itself."""
    gate = np.array(
        [0, -0.0, 86, -86, 88, -88, 100, -100, 1e4, -1e4, 1e-40, -1e-40, 709, -709, 1, -1], dtype=np.float32
    )
    for factor in (1.0, -3.0, 1e4, 0.0):
        up = np.full_like(gate, factor)
        limits = np.maximum(gate.astype(np.float64), 0) * factor
        y = silu_mul(library, gate, up)
        is_far = np.abs(gate) >= 86
        np.testing.assert_allclose(y[is_far], limits[is_far], rtol=1e-6, atol=1e-27)
        assert not y[:2].any()
        assert np.isfinite(y).all()


@pytest.mark.parametrize("magnitude", [1e-20, 1e-3, 1.0, 1e4, 1e30])
def test_quantised_activations_are_within_half_a_step(library, magnitude):
    x = (np.random.default_rng(2).normal(size=(9, 96)) * magnitude).astype(np.float32)
    largest = np.abs(x).max(-1, keepdims=True).astype(np.float64)
    steps = largest / MAX_ACTIVATION
    seen = quantized(library, x)
    assert np.all(np.abs(seen - x) <= steps * 0.51)
    levels = np.rint(seen / steps)
    assert np.all(np.abs(levels).max(-1) == MAX_ACTIVATION)
    np.testing.assert_allclose(seen, levels * steps, rtol=1e-6)


@pytest.mark.parametrize("num_inputs", [32, 544, 1536, 14336])
def test_more_inputs_have_fewer_steps_so_that_sums_fit(library, num_inputs):
    """128 * steps * inputs stays below 2^31, and nearly reaches it where 16 bits would let more steps in."""
    x = np.linspace(-1, 1, num_inputs, dtype=np.float32)[None]
    smallest = np.abs(quantized(library, x)[0]).min()
    steps = min(MAX_ACTIVATION, (2**31 - 1) // (128 * num_inputs))
    np.testing.assert_allclose(quantized(library, x), np.rint(x * steps) / steps, rtol=1e-5, atol=1e-6)
    assert smallest == 0 or smallest >= 0.99 / steps


def test_a_row_of_zeros_stays_zero(library):
    x = np.zeros((2, 64), dtype=np.float32)
    x[1, 40] = -3
    seen = quantized(library, x)
    assert not seen[0].any()
    assert seen[1, 40] == pytest.approx(-3, rel=1e-6)
    assert np.count_nonzero(seen) == 1


@pytest.mark.parametrize("magnitude", [1e-30, 1e-36, 1e-38, 1e-40, 1e-45])
def test_activations_next_to_nothing_stay_so(library, magnitude):
    """The inverse of their scale is beyond fp32: such a row may become zero, but never anything else."""
    x = np.zeros((1, 64), dtype=np.float32)
    x[0, 1::3] = magnitude
    x[0, 2::3] = -magnitude / 2
    assert np.all(np.abs(quantized(library, x) - x) <= magnitude)


def test_products_of_activations_next_to_nothing_are_finite(library, arena_of, random_rows):
    x = np.zeros((3, 32), dtype=np.float32)
    x[0, ::2], x[1, :], x[2, 5] = 1e-37, -1e-40, 1e-45
    for source in (Source.Q4_1, Source.Q8_0):
        y = random_rows(source, 32, 32, seed=12).pack(library, arena_of(library)).multiply(x, 1)
        assert np.all(np.abs(y) < 1e-30)


def test_the_largest_activations_do_not_overflow(library):
    x = np.zeros((1, 32), dtype=np.float32)
    x[0, :3] = 3.3e38 * np.array([1, -1, 0.5])
    np.testing.assert_allclose(quantized(library, x), x, rtol=0.01)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_broken_activation_is_not_taken_for_a_number(library, broken):
    """Wherever in its row it is: what cannot be computed must show, so that the request fails and no other."""
    for column in range(32):
        x = np.ones((2, 32), dtype=np.float32)
        x[0, column] = broken
        seen = quantized(library, x)
        assert not np.isfinite(seen[0]).all(), column
        np.testing.assert_allclose(seen[1], x[1], rtol=1e-6)
