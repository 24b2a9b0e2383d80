"""Matrices of integers: their layout, their values, and products in plain torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ramet.kernels.dispatch import KERNELS, select_kernels
from ramet.kernels.quantized import product
from ramet.kernels.quantized.matrix import QuantizedMatrix, layout_problem, pack, stack
from ramet.kernels.quantized.product import quantized_linear


def random_matrix(
    bits: int, num_outputs: int, num_inputs: int, group_len: int, has_zeros: bool = True, seed: int = 0
) -> tuple[QuantizedMatrix, Tensor]:
    """A matrix, and its values in fp64 by the formula."""
    generator = torch.Generator().manual_seed(seed)
    low, high = (0, 16) if bits == 4 else (-128, 128)
    codes = torch.randint(low, high, (num_outputs, num_inputs), generator=generator)
    scales = torch.rand((num_outputs, num_inputs // group_len), generator=generator) * 0.01 + 1e-3
    zeros = torch.randint(0, 17, scales.shape, generator=generator) if has_zeros else torch.zeros(scales.shape)
    matrix = pack(bits, codes.to(torch.uint8 if bits == 4 else torch.int8), scales, zeros if has_zeros else None)
    values = torch.empty((num_outputs, num_inputs), dtype=torch.float64)
    for k in range(num_inputs):
        values[:, k] = (codes[:, k] - zeros[:, k // group_len]) * scales[:, k // group_len].double()
    return matrix, values


@given(
    bits=st.sampled_from([4, 8]),
    num_outputs=st.integers(1, 5),
    num_groups=st.integers(1, 3),
    group_blocks=st.integers(1, 3),
    has_zeros=st.booleans(),
)
def test_the_values_are_those_of_the_formula(
    bits: int, num_outputs: int, num_groups: int, group_blocks: int, has_zeros: bool
) -> None:
    group_len = group_blocks * (32 if bits == 4 else 16)
    matrix, values = random_matrix(bits, num_outputs, num_groups * group_len, group_len, has_zeros)
    assert matrix.shape == values.shape
    torch.testing.assert_close(matrix.dequantize(torch.float32).double(), values, rtol=1e-7, atol=0)
    if num_outputs > 2:
        assert torch.equal(matrix.rows(1, 3).dequantize(torch.float32), matrix.dequantize(torch.float32)[1:3])


def test_four_bits_take_half_a_byte_and_eight_a_byte() -> None:
    assert random_matrix(4, 64, 256, 128)[0].num_bytes == 64 * 256 // 2 + 64 * 2 * (4 + 2)
    assert random_matrix(8, 64, 256, 256, has_zeros=False)[0].num_bytes == 64 * 256 + 64 * 4


def test_stacked_matrices_are_those_of_their_parts() -> None:
    parts = [random_matrix(8, num, 64, 32, has_zeros, seed=num) for num, has_zeros in ((3, True), (2, False))]
    stacked = stack([matrix for matrix, _ in parts])
    expected = torch.cat([matrix.dequantize(torch.float32) for matrix, _ in parts])
    assert torch.equal(stacked.dequantize(torch.float32), expected)


@pytest.mark.parametrize(
    ("bits", "num_inputs", "group_len", "message"),
    [
        (4, 96, 48, "groups of 48 inputs are not a multiple of 32"),
        (8, 40, 8, "groups of 8 inputs are not a multiple of 16"),
        (4, 96, 64, "groups of 64 inputs do not divide the 96"),
    ],
)
def test_what_has_no_layout_is_said(bits: int, num_inputs: int, group_len: int, message: str) -> None:
    assert message in str(layout_problem(bits, num_inputs, group_len))
    assert layout_problem(bits, 96, 96) is None


@pytest.mark.parametrize("num_rows", [0, 1, 9, 100])
@pytest.mark.parametrize("has_bias", [True, False])
def test_chunks_of_outputs_make_one_product(num_rows: int, has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(product.CHUNK_VALUES, "cpu", 64 * 7)  # 7 outputs at a time, and 4 at last
    matrix, values = random_matrix(4, 25, 64, 32)
    x = torch.randn((num_rows, 64))
    bias = torch.randn(25) if has_bias else None
    expected = x.double() @ values.T + (0 if bias is None else bias)
    torch.testing.assert_close(quantized_linear(x, matrix, bias).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(name for name, entry in KERNELS.items() if entry.takes_quantized))
@pytest.mark.parametrize(("bits", "has_zeros"), [(4, True), (8, False)])
def test_every_backend_that_says_so_takes_them(name: str, bits: int, has_zeros: bool) -> None:
    if name == "triton":
        pytest.importorskip("triton")
    matrix, values = random_matrix(bits, 40, 96, 96, has_zeros)
    x, bias = torch.randn((11, 96)), torch.randn(40)
    found = select_kernels("cpu", name).linear(x, matrix, bias)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), x.double() @ values.T + bias, rtol=1e-4, atol=1e-5)
