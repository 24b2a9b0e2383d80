"""OPT equals transformers: the 125m shape, the 350m shape, and every switch between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import OPTConfig

from ramet.kernels.interface import Kernels
from ramet.runtime.models.base import Model
from ramet.runtime.models.errors import ModelLoadError

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "ffn_dim": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
}
CONFIGS: dict[str, Any] = {
    "125m": OPTConfig(**SIZES),
    "350m": OPTConfig(**SIZES, do_layer_norm_before=False, word_embed_proj_dim=24),
    "narrow-embeddings": OPTConfig(**SIZES, word_embed_proj_dim=32),
    "no-biases": OPTConfig(**SIZES, enable_bias=False),
    "plain-norms": OPTConfig(**SIZES, layer_norm_elementwise_affine=False),
    "no-final-norm": OPTConfig(**SIZES, _remove_final_layer_norm=True),
    "untied-gelu": OPTConfig(**SIZES, tie_word_embeddings=False, activation_function="gelu"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(name: str, check_equal: Callable[..., Model], kernels: Kernels) -> None:
    assert check_equal(CONFIGS[name], kernels, lens=(40, 5, 22)).max_model_len == 40


def test_learned_positions_end(check_equal: Callable[..., Model], reference_kernels: Kernels) -> None:
    with pytest.raises(ModelLoadError, match="max_model_len=41 exceeds the model's limit of 40 positions"):
        check_equal(CONFIGS["125m"], reference_kernels, max_model_len=41)
