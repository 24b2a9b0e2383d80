"""Every kind of model on the int8 kernels: as close to fp32 as int8 weights are, and the same in every chunking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, OPTConfig, Qwen2Config, Qwen3Config

from ramet.kernels.dispatch import select_kernels
from ramet.kernels.interface import Kernels
from ramet.runtime.models.base import Model
from ramet.runtime.weights.load import load_model
from ramet.runtime.weights.resolve import resolve_model

SIZES: dict[str, Any] = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GATED: dict[str, Any] = {**SIZES, "intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 64}
PLAIN: dict[str, Any] = {**SIZES, "ffn_dim": 96, "max_position_embeddings": 64}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**GATED),
    "llama-tied-biases": LlamaConfig(**GATED, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "qwen2": Qwen2Config(**GATED),
    "qwen3-tied": Qwen3Config(**GATED, head_dim=16, tie_word_embeddings=True),
    "opt": OPTConfig(**PLAIN),
    "opt-350m": OPTConfig(**PLAIN, do_layer_norm_before=False, word_embed_proj_dim=32),
    "opt-untied": OPTConfig(**PLAIN, tie_word_embeddings=False),
}


@pytest.fixture
def load(tmp_path: Path, make_hf_model: Callable[[Any], Any]) -> Callable[[str], tuple[Any, Model, Kernels]]:
    def build(name: str) -> tuple[Any, Model, Kernels]:
        hf_model = make_hf_model(CONFIGS[name])
        hf_model.save_pretrained(tmp_path)
        kernels = select_kernels("cpu", "torch_int8")
        return hf_model, load_model(resolve_model(tmp_path), kernels), kernels

    return build


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_close_to_transformers(
    name: str,
    load: Callable[[str], tuple[Any, Model, Kernels]],
    make_runner: Callable[..., Any],
    random_texts: Callable[..., list[list[int]]],
    hf_logits: Callable[[Any, Sequence[int]], Tensor],
) -> None:
    hf_model, model, kernels = load(name)
    texts = random_texts(97)
    for text, logits in zip(texts, make_runner(model, kernels).run(texts), strict=True):
        expected = hf_logits(hf_model, text)
        assert float((logits - expected).std() / expected.std()) < 0.08
    whole = [make_runner(model, kernels).step([(0, text)])[0] for text in texts]
    for logits, in_pieces in zip(whole, make_runner(model, kernels).run(texts), strict=True):
        torch.testing.assert_close(logits, in_pieces, atol=1e-2 * float(logits.std()), rtol=0)


def test_a_tied_matrix_is_held_once(load: Callable[[str], tuple[Any, Model, Kernels]]) -> None:
    tied: Any = load("llama-tied-biases")[1]
    assert tied.lm_head is tied.embedding
    assert tied.embedding.values.dtype == torch.int8
    apart: Any = load("llama")[1]
    assert apart.lm_head is not apart.embedding
