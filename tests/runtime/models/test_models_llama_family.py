"""Llama, Mistral, Qwen2 and Qwen3 equal transformers on tiny random configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from ramet.kernels.interface import Kernels
from ramet.runtime.models.base import Model

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES),
    "llama-tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-wide-heads": LlamaConfig(**SIZES, head_dim=20),
    "llama-multi-head": LlamaConfig(**{**SIZES, "num_key_value_heads": 6}),
    "llama-multi-query": LlamaConfig(**{**SIZES, "num_key_value_heads": 1}, rms_norm_eps=1e-3),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "mistral-window": MistralConfig(**SIZES, sliding_window=7),
    "mistral-wide-heads": MistralConfig(**SIZES, sliding_window=16, head_dim=24),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2-tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2-window": Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
    "qwen3-biases": Qwen3Config(**SIZES, head_dim=8, attention_bias=True, tie_word_embeddings=True),
    "qwen3-window": Qwen3Config(
        **SIZES,
        head_dim=16,
        use_sliding_window=True,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(name: str, check_equal: Callable[..., Model], kernels: Kernels) -> None:
    model = check_equal(CONFIGS[name], kernels)
    assert model.max_model_len == 64
    assert model.config.eos_token_ids == (2,)


def test_qwen2_windows_only_upper_layers(check_equal: Callable[..., Model], reference_kernels: Kernels) -> None:
    model = check_equal(CONFIGS["qwen2-window"], reference_kernels)
    assert model.config.sliding_windows == (None, 5, 5)
