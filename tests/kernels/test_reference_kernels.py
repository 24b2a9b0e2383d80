"""The oracle itself, against independent formulations in torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from ramet.kernels.attention_plan import build_attention_metadata
from ramet.kernels.dispatch import select_kernels

KERNELS = select_kernels("cpu", "reference")


@pytest.mark.parametrize("num_rows", [1, 9, 37])
def test_attention_of_one_sequence_is_dense_attention(num_rows: int) -> None:
    table, context_len, group_size = [4, 1, 7], 37, 3
    dense_key, dense_value = torch.randn(2, context_len, 2, 16).unbind()
    key_cache, value_cache = KERNELS.new_kv_cache(8, 16, 2, 16)
    slots = torch.tensor([table[position // 16] * 16 + position % 16 for position in range(context_len)])
    KERNELS.store_kv(dense_key, dense_value, key_cache, value_cache, slots)
    query = torch.randn(num_rows, 2 * group_size, 16)
    metadata = build_attention_metadata([table], [0, num_rows], [context_len], 16)
    output = KERNELS.attention(query, key_cache, value_cache, metadata, 0.25)
    is_visible = torch.ones(num_rows, context_len, dtype=torch.bool).tril(context_len - num_rows)
    expected = F.scaled_dot_product_attention(
        query.transpose(0, 1),
        dense_key.transpose(0, 1).repeat_interleave(group_size, dim=0),
        dense_value.transpose(0, 1).repeat_interleave(group_size, dim=0),
        attn_mask=is_visible,
        scale=0.25,
    )
    torch.testing.assert_close(output, expected.transpose(0, 1))


def test_sliding_window_of_one_sees_only_the_row_itself() -> None:
    key_cache, value_cache = KERNELS.new_kv_cache(4, 16, 1, 8)
    value = torch.randn(20, 1, 8)
    metadata = build_attention_metadata([[2, 0]], [0, 20], [20], 16)
    KERNELS.store_kv(torch.randn(20, 1, 8), value, key_cache, value_cache, metadata.slots)
    assert torch.equal(KERNELS.attention(torch.randn(20, 1, 8), key_cache, value_cache, metadata, 1.0, 1), value)


def test_pointwise_ops_are_those_of_torch() -> None:
    x, weight, bias = torch.randn(5, 32), torch.randn(32), torch.randn(32)
    torch.testing.assert_close(KERNELS.rms_norm(x, weight, 1e-5), F.rms_norm(x, (32,), weight, 1e-5))
    torch.testing.assert_close(KERNELS.layer_norm(x, weight, bias, 1e-5), F.layer_norm(x, (32,), weight, bias, 1e-5))
    torch.testing.assert_close(KERNELS.silu_mul(x), F.silu(x[:, :16]) * x[:, 16:])
    torch.testing.assert_close(KERNELS.linear(x, torch.eye(32)[:7], bias[:7]), x[:, :7] + bias[:7])


def test_rotary_multiplies_complex_numbers() -> None:
    x, angles = torch.randn(6, 2, 20), torch.randn(6, 8)
    pairs = torch.complex(x[..., :8], x[..., 8:16]) * torch.polar(torch.ones(6, 1, 8), angles[:, None])
    expected = torch.cat((pairs.real, pairs.imag, x[..., 16:]), dim=-1)
    torch.testing.assert_close(KERNELS.rotary(x, angles.cos(), angles.sin()), expected)
