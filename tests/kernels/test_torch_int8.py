"""The int8 backend: exact sums for any shape, rows that do not depend on each other, and what a processor can do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ramet.kernels.torch_int8 import capability, linear
from ramet.kernels.torch_int8.capability import HALF_LEVELS, exact_weight_levels, is_fast
from ramet.kernels.torch_int8.kernels import TorchInt8Kernels
from ramet.kernels.torch_int8.linear import CHUNK_ROWS, FEW_ROWS, int8_linear
from ramet.kernels.torch_int8.quantize import HIGH_UNIT, MAX_LEVELS, ROW_LEVELS, quantize_rows, split_rows
from ramet.kernels.torch_int8.weight import CHUNK_VALUES, Int8Weight, lookup_rows, quantize_weight

KERNELS = TorchInt8Kernels(torch.device("cpu"))
NUM_ROWS = [1, 2, 3, FEW_ROWS // 2, FEW_ROWS // 2 + 1, 17, 32, 100, CHUNK_ROWS, CHUNK_ROWS + 1, 2 * CHUNK_ROWS + 5]


@pytest.fixture(params=[False, True], ids=["vectors", "amx"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form of the product that one or the other kind of processor takes; either is right on both."""
    monkeypatch.setattr(linear, "has_amx", lambda: request.param)


def joined(halves: Tensor) -> Tensor:
    """The 16-bit integers [T, K] that halves int8 [2T, K] stand for."""
    high, low = halves.double().chunk(2)
    return high * HIGH_UNIT + low


@pytest.mark.parametrize("shape", [(1, 2), (2, 3), (3, 5), (80, 48), (9, 33), (64, 576), (33, 1536)], ids=str)
@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.usefixtures("form")
def test_products_are_those_of_the_integers(num_rows: int, shape: tuple[int, int]) -> None:
    x, weight = torch.randn(num_rows, shape[1]), KERNELS.prepare_weight(torch.randn(shape))
    halves, scales = split_rows(x)
    sums = joined(halves) @ weight.values.double().t()
    expected = sums * scales.double() * weight.scales.double()
    torch.testing.assert_close(KERNELS.linear(x, weight).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_the_largest_sums_do_not_saturate(num_rows: int) -> None:
    signs = torch.tensor([1.0, -1.0])
    x = torch.full((num_rows, 96), 3.0) * signs.repeat(num_rows)[:num_rows, None]
    weight = torch.full((4, 96), 2.0) * signs.repeat(2)[:, None]
    torch.testing.assert_close(KERNELS.linear(x, KERNELS.prepare_weight(weight)), x @ weight.t(), atol=1e-3, rtol=1e-5)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_row_is_the_same_bits_whatever_is_computed_with_it(has_bias: bool) -> None:
    x, weight = torch.randn(2 * CHUNK_ROWS + 5, 96), KERNELS.prepare_weight(torch.randn(50, 96))
    x[7] *= 1e4
    bias = torch.randn(50) if has_bias else None
    together = KERNELS.linear(x, weight, bias)
    for start, end in ((0, 1), (7, 8), (0, 7), (5, 25), (3, CHUNK_ROWS + 9), (CHUNK_ROWS - 1, CHUNK_ROWS + 1)):
        assert torch.equal(KERNELS.linear(x[start:end], weight, bias), together[start:end]), (start, end)


def test_a_row_that_is_not_finite_spoils_only_itself() -> None:
    x, weight = torch.randn(4, 48), KERNELS.prepare_weight(torch.randn(20, 48))
    expected = KERNELS.linear(x, weight)
    for value in (math.nan, math.inf, -math.inf):
        spoiled = x.clone()
        spoiled[2, 5] = value
        output = KERNELS.linear(spoiled, weight)
        assert not output[2].isfinite().any()
        assert torch.equal(output[[0, 1, 3]], expected[[0, 1, 3]])


def test_zeros_stay_zeros() -> None:
    weight = torch.randn(6, 32)
    weight[2] = 0
    output = KERNELS.linear(torch.eye(32)[:3] * torch.tensor([[1.0], [0.0], [1.0]]), KERNELS.prepare_weight(weight))
    assert not output[1].any()
    assert not output[:, 2].any()
    assert output[0, 0] != 0


def test_halves_hold_sixteen_bits() -> None:
    x = torch.randn(500, 64) * torch.logspace(-6, 6, 500)[:, None]
    x[3], x[4] = 1.0, -1.0
    halves, scales = split_rows(x)
    assert halves.min() >= -MAX_LEVELS
    error = (joined(halves) * scales.double() - x.double()).abs()
    assert bool((error <= 0.51 * scales).all())
    torch.testing.assert_close(scales[:, 0] * ROW_LEVELS, x.abs().amax(1))


@pytest.mark.parametrize("num_levels", [HALF_LEVELS, MAX_LEVELS])
def test_weights_keep_to_their_levels(num_levels: int) -> None:
    weight = torch.randn(40, 96)
    quantized = quantize_weight(weight, num_levels)
    assert int(quantized.values.abs().max()) == num_levels
    error = (quantized.values * quantized.scales[:, None] - weight).abs()
    assert bool((error <= 0.501 * quantized.scales[:, None]).all())
    assert torch.equal(lookup_rows(torch.tensor([7]), quantized), (quantized.values * quantized.scales[:, None])[[7]])


def test_a_matrix_is_quantised_in_pieces_as_it_is_whole() -> None:
    weight = torch.randn(5, CHUNK_VALUES // 2 + 3)
    values, scales = quantize_rows(weight)
    quantized = quantize_weight(weight, MAX_LEVELS)
    assert torch.equal(quantized.values, values)
    assert torch.equal(quantized.scales, scales[:, 0])


def test_few_levels_are_taken_where_full_ones_saturate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that adds pairs of products in 16 bits, as those without VNNI do."""

    def saturating(rows: Tensor, columns: Tensor) -> Tensor:
        products = (rows.int() + 128)[:, :, None] * columns.int()[None]
        pairs = (products[:, ::2] + products[:, 1::2]).clamp(-(2**15), 2**15 - 1)
        return (pairs.sum(1) - 128 * columns.int().sum(0)).int()

    monkeypatch.setattr(torch, "_int_mm", saturating)
    monkeypatch.setattr(linear, "has_amx", lambda: False)
    exact_weight_levels.cache_clear()
    try:
        assert exact_weight_levels() == HALF_LEVELS
        assert not is_fast()
        x, weight = torch.randn(5, 96), TorchInt8Kernels(torch.device("cpu")).prepare_weight(torch.randn(8, 96))
        expected = joined(split_rows(x)[0]) @ weight.values.double().t()
        halves = torch.cat([torch.full((1, 96), MAX_LEVELS), torch.full((1, 96), -MAX_LEVELS)]).to(torch.int8)
        extreme = torch.full((96, 1), HALF_LEVELS, dtype=torch.int8)
        assert torch.equal(saturating(halves, extreme), 96 * MAX_LEVELS * HALF_LEVELS * torch.tensor([[1], [-1]]).int())
        scaled = int8_linear(x, Int8Weight(weight.values, torch.ones(8), torch.float32), None) / split_rows(x)[1]
        torch.testing.assert_close(scaled.double(), expected, atol=1.0, rtol=1e-6)
    finally:
        exact_weight_levels.cache_clear()


@pytest.mark.parametrize("machine", ["arm64", "aarch64", "riscv64"])
def test_int8_is_not_called_fast_where_torch_has_no_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    monkeypatch.setattr(capability.platform, "machine", lambda: machine)
    assert not is_fast()
