"""Products with integer weights, against fp64 products of the values that the integers stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ramet.kernels.quantized.matrix import QuantizedMatrix, pack
from ramet.kernels.triton.quantized_linear import MAX_ROWS, dequantize, quantized_linear

SHAPES = [(8, 33, 96, 96, False), (8, 20, 64, 16, True), (4, 50, 128, 32, True), (4, 7, 192, 64, False)]
"""bits, outputs, inputs, inputs of a group, zeros."""


def random_matrix(shape: tuple[int, int, int, int, bool]) -> tuple[QuantizedMatrix, Tensor]:
    """A matrix and its values in fp64; levels reach as far as any checkpoint's."""
    bits, num_outputs, num_inputs, group_len, has_zeros = shape
    low, high = (0, 16) if bits == 4 else (-128, 128)
    codes = torch.randint(low, high, (num_outputs, num_inputs))
    scales = torch.rand((num_outputs, num_inputs // group_len)) * 0.01
    zeros = torch.randint(*((0, 17) if bits == 4 else (-128, 128)), scales.shape) if has_zeros else None
    matrix = pack(bits, codes.to(torch.uint8 if bits == 4 else torch.int8), scales, zeros)
    levels = codes.view(num_outputs, -1, group_len) - (0 if zeros is None else zeros[:, :, None])
    return matrix, (levels * scales.double()[:, :, None]).view(num_outputs, num_inputs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_rows", [0, 1, 17, MAX_ROWS, MAX_ROWS + 1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_products(shape: tuple[int, int, int, int, bool], num_rows: int, dtype: torch.dtype, tolerance: float) -> None:
    matrix, values = random_matrix(shape)
    x = torch.randn((num_rows, 2 * shape[2])).to(dtype)[:, : shape[2]]  # rows of a wider tensor
    bias = torch.randn(shape[1]).to(dtype) if num_rows % 2 else None
    found = quantized_linear(x, matrix, bias)
    expected = x.double() @ values.T + (0 if bias is None else bias.double())
    assert (found.dtype, found.shape) == (dtype, expected.shape)
    if num_rows:
        size = (x.double().abs() @ values.abs().T).mean()
        assert (found.double() - expected).abs().amax() <= tolerance * size


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dequantized_values_are_rounded_once(shape: tuple[int, int, int, int, bool], dtype: torch.dtype) -> None:
    matrix, values = random_matrix(shape)
    found = dequantize(matrix, dtype)
    assert torch.equal(found, matrix.dequantize(dtype))
    torch.testing.assert_close(found.double(), values, rtol=1e-3 if dtype == torch.float16 else 1e-6, atol=1e-7)


def test_not_a_number_stays_in_its_row() -> None:
    matrix, _ = random_matrix(SHAPES[2])
    x = torch.randn((3, 128))
    x[1, 5] = torch.nan
    found = quantized_linear(x, matrix, None)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()
