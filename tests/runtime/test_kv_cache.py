"""The KV cache: its size, its copies, and that it only reserves memory."""

from __future__ import annotations

import pytest
import torch

from ramet.kernels.dispatch import KERNELS, select_kernels, why_unavailable
from ramet.kernels.kv_dtypes import LARGEST_CODE
from ramet.radix.prefix_cache import BlockCopy
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.kv_cache import KVCache
from ramet.runtime.models.base import ModelConfig

RUNNABLE = {name for name in KERNELS if why_unavailable(name, torch.device("cpu")) is None}
"""All backends; without Triton, all but that one."""


def model_config(num_layers: int = 3, num_kv_heads: int = 2, head_dim: int = 8) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=10,
        hidden_size=32,
        intermediate_size=64,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=1e-5,
        max_position_embeddings=128,
        rope=None,
        tie_word_embeddings=True,
        attention_bias=False,
        attention_output_bias=False,
        mlp_bias=False,
        has_qk_norm=False,
        sliding_windows=(None,) * num_layers,
        bos_token_id=None,
        eos_token_ids=(0,),
    )


@pytest.mark.parametrize("name", sorted(RUNNABLE))
def test_size(name: str) -> None:
    cache = KVCache(select_kernels("cpu", name), model_config(), num_blocks=5, block_size=16)
    assert cache.bytes_per_block == 3 * 2 * 2 * 8 * 16 * 4
    assert len(cache.layers) == 3
    assert KVCache.num_blocks_in(cache.bytes_per_block * 7 - 1, model_config(), 16) == 6


def test_half_precision_holds_twice_the_blocks() -> None:
    num_bytes = 1 << 20
    full = KVCache.num_blocks_in(num_bytes, model_config(), 16)
    assert KVCache.num_blocks_in(num_bytes, model_config(), 16, torch.float16) in (2 * full, 2 * full + 1)


@pytest.mark.skipif("triton" not in RUNNABLE, reason="Triton runs on Linux only")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, *LARGEST_CODE], ids=str)
@pytest.mark.parametrize("has_padding_block", [False, True])
def test_a_budget_counts_what_a_cache_of_any_dtype_takes(dtype: torch.dtype, has_padding_block: bool) -> None:
    """Scales included: the reckoning of blocks, and the storage that Triton's kernels make."""
    from ramet.kernels.triton.kernels import TritonKernels

    kernels = TritonKernels(torch.device("cpu"), dtype)
    cache = KVCache(kernels, model_config(), num_blocks=5, block_size=16, has_padding_block=has_padding_block)
    num_bytes = 3 * 2 * 2 * 16 * (8 * dtype.itemsize + (4 if dtype in LARGEST_CODE else 0))
    assert cache.bytes_per_block == num_bytes
    assert KVCache.num_blocks_in(7 * num_bytes, model_config(), 16, dtype) == 7
    assert KVCache.num_blocks_in(7 * num_bytes - 1, model_config(), 16, dtype) == 6


def test_a_budget_below_one_block_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"6143 bytes.*6144 bytes"):
        KVCache.num_blocks_in(6143, model_config(), 16)


@pytest.mark.parametrize(("num_blocks", "block_size", "name"), [(0, 16, "num_blocks=0"), (4, 0, "block_size=0")])
def test_sizes_below_one_are_refused(num_blocks: int, block_size: int, name: str) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        KVCache(select_kernels("cpu"), model_config(), num_blocks, block_size)


@pytest.mark.parametrize("name", sorted(RUNNABLE))
def test_copies_reach_every_layer_and_read_before_they_write(name: str) -> None:
    cache = KVCache(select_kernels("cpu", name), model_config(), num_blocks=4, block_size=16)
    for layer in cache.layers:
        for tensor in layer:
            tensor.copy_(torch.randn(tensor.shape))
    before = [tuple(tensor.clone() for tensor in layer) for layer in cache.layers]
    cache.copy([BlockCopy(0, 1, 3), BlockCopy(1, 2, 16), BlockCopy(2, 0, 1)])
    for layer, old_layer in zip(cache.layers, before, strict=True):
        for tensor, old in zip(layer, old_layer, strict=True):
            for src, dst in ((0, 1), (1, 2), (2, 0), (3, 3)):
                assert torch.equal(tensor[dst], old[src])


def test_no_copies_touch_nothing() -> None:
    cache = KVCache(select_kernels("cpu"), model_config(), num_blocks=2, block_size=16)
    cache.copy([])
    assert not any(tensor.any() for layer in cache.layers for tensor in layer)
