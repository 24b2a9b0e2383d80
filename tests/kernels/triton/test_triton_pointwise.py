"""Norms, rotation, activation and the KV store against fp64, at odd shapes and strides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ramet.kernels.triton import norm, rotary, silu_mul
from ramet.kernels.triton.kernels import TritonKernels

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of the largest value. The interpreter cuts bf16 off instead of rounding it."""
SHAPES = [(1, 1), (5, 96), (3, 577), (33, 1000), (2, 4097)]


def assert_near(actual: Tensor, expected: Tensor) -> None:
    assert actual.shape == expected.shape
    scale = float(expected.abs().max()) or 1.0
    assert float((actual.double() - expected).abs().max()) <= TOLERANCE[actual.dtype] * scale


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("num_rows", "width"), SHAPES)
def test_norms(num_rows: int, width: int, dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, num_rows, width).to(dtype)
    weight, bias = torch.randn(2, width).to(dtype)
    x64, residual64, weight64, bias64 = x.double(), residual.double(), weight.double(), bias.double()

    def rms(values: Tensor) -> Tensor:
        return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + 1e-5) * weight64

    assert_near(norm.rms_norm(x, weight, 1e-5), rms(x64))
    normed, summed = norm.add_rms_norm(x, residual, weight, 1e-5)
    assert_near(summed, x64 + residual64)
    assert_near(normed, rms(x64 + residual64))
    centred = x64 - x64.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    assert_near(norm.layer_norm(x, weight, bias, 1e-5), centred * torch.rsqrt(variance + 1e-5) * weight64 + bias64)


def test_norm_of_heads_inside_a_larger_tensor() -> None:
    heads = torch.randn(7, 9, 24)
    part, weight = heads[:, 2:5], torch.randn(24)
    expected = part.double() * torch.rsqrt(part.double().square().mean(-1, keepdim=True) + 1e-6) * weight.double()
    assert_near(norm.rms_norm(part, weight, 1e-6), expected)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("num_rows", "width"), SHAPES)
def test_silu_mul(num_rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = (3 * torch.randn(num_rows, 2 * width)).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_near(silu_mul.silu_mul(gate_up), gate * torch.sigmoid(gate) * up)


def test_silu_of_large_gates_is_finite() -> None:
    gate_up = torch.tensor([[-1e4, -200.0, 1e4, 2.0, 3.0, 4.0]])
    assert silu_mul.silu_mul(gate_up).tolist() == [[0.0, 0.0, 4e4]]


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    half = angles.shape[1]
    cos, sin = angles.double().cos()[:, None], angles.double().sin()[:, None]
    first, second, rest = x.double().split([half, half, x.shape[2] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "head_dim", "half"), [(11, 3, 64, 32), (1, 1, 8, 2), (5, 7, 80, 16)]
)
def test_rotary(num_tokens: int, num_heads: int, head_dim: int, half: int, dtype: torch.dtype) -> None:
    x = torch.randn(num_tokens, num_heads + 2, head_dim).to(dtype)[:, 1:-1]
    angles = torch.randn(num_tokens, half)
    assert_near(rotary.rotary(x, angles.cos(), angles.sin()), rotated(x, angles))


KV_ERROR = {
    torch.float32: 1e-6,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
    torch.float8_e4m3fn: 1 / 16,
    torch.int8: 1 / 254,
}
"""Of the row's largest element: half the distance of the numbers around it, all of it where a cast cuts off."""


def read_slots(kernels: TritonKernels, cache: Tensor, slots: Tensor, num_heads: int, head_dim: int) -> Tensor:
    """The rows [T, Hk, D] that a cache holds at some slots, in fp64."""
    view, _ = kernels.views(cache, cache, num_heads, head_dim)
    block_size = view.rows.shape[2]
    rows = view.rows[slots // block_size, :, slots % block_size].double()
    if view.scales is None:
        return rows
    return rows * view.scales[slots // block_size, :, slots % block_size].double()[..., None]


@pytest.mark.parametrize("kv_dtype", KV_ERROR, ids=str)
@pytest.mark.parametrize(("num_heads", "head_dim", "block_size"), [(3, 80, 16), (1, 8, 4), (5, 64, 16)])
def test_store_alone_and_with_rotation(kv_dtype: torch.dtype, num_heads: int, head_dim: int, block_size: int) -> None:
    kernels = TritonKernels(CPU, kv_dtype)
    slots = torch.randperm(20 * block_size)[:13]
    qkv = torch.randn(13, 4 + 2 * num_heads, head_dim) * torch.logspace(-3, 3, 13)[:, None, None]
    angles = torch.randn(13, head_dim // 2)
    caches = kernels.new_kv_cache(20, block_size, num_heads, head_dim)
    query = kernels.rotary_store(qkv, num_heads, angles.cos(), angles.sin(), *caches, slots)
    expected = rotated(qkv[:, : 4 + num_heads], angles)
    for idx in range(13):
        assert_near(query[idx], expected[idx, :4])
    for cache, rows in zip(caches, (expected[:, 4:], qkv[:, 4 + num_heads :].double()), strict=True):
        error = (read_slots(kernels, cache, slots, num_heads, head_dim) - rows).abs().amax(-1)
        assert (error <= 1.01 * KV_ERROR[kv_dtype] * rows.abs().amax(-1)).all()
        num_written = torch.tensor([bool(block.any()) for block in cache.flatten(1)]).sum()
        assert num_written == len(set((slots // block_size).tolist()))

    alone = kernels.new_kv_cache(20, block_size, num_heads, head_dim)
    kernels.store_kv(expected[:, 4:].float(), qkv[:, 4 + num_heads :], *alone, slots)
    assert torch.equal(alone[1], caches[1])


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_a_row_of_zeros_is_stored_as_zeros(kv_dtype: torch.dtype) -> None:
    kernels = TritonKernels(CPU, kv_dtype)
    caches = kernels.new_kv_cache(2, 16, 2, 64)
    kernels.store_kv(torch.zeros(3, 2, 64), torch.zeros(3, 2, 64), *caches, torch.tensor([1, 2, 20]))
    assert not caches[0].any()


def test_codes_of_fp8_are_those_of_torch() -> None:
    kernels = TritonKernels(CPU, torch.float8_e4m3fn)
    key = torch.randn(400, 1, 64)
    key[:, 0, 0] = 448.0
    cache, other = kernels.new_kv_cache(25, 16, 1, 64)
    kernels.store_kv(key, key, cache, other, torch.arange(400))
    codes = kernels.views(cache, cache, 1, 64)[0].rows.reshape(400, 64)
    is_normal = key[:, 0].abs() >= 2.0**-6
    assert torch.equal(codes.float()[is_normal], key[:, 0].to(torch.float8_e4m3fn).float()[is_normal])
    assert float((codes.float() - key[:, 0])[~is_normal].abs().max()) <= 2.0**-9


@pytest.mark.parametrize("kv_dtype", KV_ERROR, ids=str)
def test_a_copied_block_has_its_scales(kv_dtype: torch.dtype) -> None:
    kernels = TritonKernels(CPU, kv_dtype)
    cache, other = kernels.new_kv_cache(4, 16, 2, 32)
    key = torch.randn(32, 2, 32) * torch.logspace(-2, 2, 32)[:, None, None]
    kernels.store_kv(key, key, cache, other, torch.arange(32))
    before = [read_slots(kernels, cache, torch.arange(16) + 16 * block, 2, 32) for block in range(2)]
    kernels.copy_blocks(cache, [0, 1, 1], [1, 0, 3])
    for src, dst in ((0, 1), (1, 0), (1, 3)):
        assert torch.equal(read_slots(kernels, cache, torch.arange(16) + 16 * dst, 2, 32), before[src])


@pytest.mark.parametrize(
    ("kv_dtype", "head_dim", "message"),
    [(torch.float32, 512, "head_dim=512.*at most 256"), (torch.int8, 62, "head_dim=62.*kv_dtype=torch.int8.*by 4")],
)
def test_heads_that_do_not_go_are_refused(kv_dtype: torch.dtype, head_dim: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TritonKernels(CPU, kv_dtype).new_kv_cache(2, 16, 1, head_dim)


def test_what_the_cache_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kv_dtype=torch.int32 is not supported; use one of float32, float16"):
        TritonKernels(CPU, torch.int32)
