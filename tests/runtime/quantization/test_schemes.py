"""The contract of every way of rounding weights while a model is loaded."""

from __future__ import annotations

import pytest
import torch

from ramet.kernels.dispatch import select_kernels
from ramet.runtime.quantization import scheme as scheme_module
from ramet.runtime.quantization.registry import SCHEMES
from ramet.runtime.quantization.scheme import QuantizationScheme, UnsupportedShapeError


@pytest.fixture(params=sorted(SCHEMES))
def scheme(request: pytest.FixtureRequest) -> QuantizationScheme:
    found = SCHEMES[request.param]
    assert found.name == request.param
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_those_of_the_rounded_weights(scheme: QuantizationScheme, dtype: torch.dtype) -> None:
    weight = (torch.randn(40, 192) * 0.1).to(dtype)
    matrix = scheme.quantize(weight)
    x, bias = torch.randn(5, 192), torch.randn(40)
    expected = x.double() @ matrix.dequantize(torch.float32).double().T + bias
    for name in ("reference", "torch"):
        found = select_kernels("cpu", name).linear(x, matrix, bias)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_memory_is_that_of_its_bits(scheme: QuantizationScheme) -> None:
    matrix = scheme.quantize(torch.randn(256, 1024))
    assert matrix.num_bytes < 1.1 * 256 * 1024 * scheme.bits / 8


def test_no_weight_moves_by_more_than_half_a_step(scheme: QuantizationScheme) -> None:
    weight = torch.randn(16, 128)
    error = (scheme.quantize(weight).dequantize(torch.float32) - weight).abs()
    steps = 2**scheme.bits - 1
    most = (weight.amax(1).clamp_min(0) - weight.amin(1).clamp_max(0)) / steps
    if scheme.name == "int8":  # the same step on either side of 0
        most = weight.abs().amax(1) / 127
    assert (error.amax(1) <= most).all()  # the zero is rounded too: half a step more
    assert error.mean() < most.mean() / 2


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_constant_rows_are_kept(scheme: QuantizationScheme, value: float) -> None:
    weight = torch.full((3, 64), value)
    torch.testing.assert_close(scheme.quantize(weight).dequantize(torch.float32), weight)


def test_rows_do_not_depend_on_their_neighbours(scheme: QuantizationScheme, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(7, 64)
    whole = scheme.quantize(weight).dequantize(torch.float32)
    monkeypatch.setattr(scheme_module, "CHUNK_VALUES", 64 * 3)
    assert torch.equal(scheme.quantize(weight).dequantize(torch.float32), whole)


@pytest.mark.parametrize("num_inputs", [1, 24, 100])
def test_inputs_that_do_not_divide_are_refused(scheme: QuantizationScheme, num_inputs: int) -> None:
    with pytest.raises(UnsupportedShapeError, match=f"{scheme.name} takes a multiple of .* not {num_inputs}"):
        scheme.quantize(torch.randn(4, num_inputs))


def test_groups_of_four_bits_are_the_longest_that_divide() -> None:
    for num_inputs, group_len in ((1536, 128), (576, 64), (96, 32)):
        assert SCHEMES["int4"].quantize(torch.randn(2, num_inputs)).group_len == group_len
