"""Models in several parts compute what the whole computes. The ranks are threads here, and meet at a barrier."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, MistralConfig, OPTConfig, Qwen2Config, Qwen3Config

from ramet.kernels.dispatch import select_kernels
from ramet.runtime.gpu.step_graphs import StepGraphs
from ramet.runtime.models.base import Model
from ramet.runtime.weights.load import load_model
from ramet.runtime.weights.resolve import resolve_model

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
OPT_SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "ffn_dim": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
}
CONFIGS: dict[str, tuple[Any, int]] = {
    "llama": (LlamaConfig(**SIZES), 2),
    "llama, tied, with biases": (LlamaConfig(**SIZES, tie_word_embeddings=True, attention_bias=True, mlp_bias=True), 2),
    "llama, kv heads held by three ranks each": (LlamaConfig(**SIZES), 6),
    "llama, multi-query": (LlamaConfig(**{**SIZES, "num_key_value_heads": 1}), 3),
    "mistral with a window": (MistralConfig(**SIZES, sliding_window=7), 2),
    "qwen2": (Qwen2Config(**SIZES), 2),
    "qwen3, wide heads": (Qwen3Config(**SIZES, head_dim=32), 2),
    "opt 125m": (OPTConfig(**OPT_SIZES), 4),
    "opt 350m": (OPTConfig(**OPT_SIZES, do_layer_norm_before=False, word_embed_proj_dim=24), 2),
    "opt without biases": (OPTConfig(**OPT_SIZES, enable_bias=False), 2),
    "opt, untied": (OPTConfig(**OPT_SIZES, tie_word_embeddings=False), 2),
}


class ThreadRank:
    """A `Group` of threads. `shared` holds what each brings to a collective."""

    def __init__(self, rank: int, shared: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(shared)
        self._shared, self._barrier = shared, barrier

    def all_reduce(self, partial: Tensor) -> Tensor:
        return torch.stack(self._exchange(partial)).sum(dim=0)

    def gather_columns(self, part: Tensor, widths: list[int]) -> Tensor:
        assert part.shape[1] == widths[self.rank]
        parts = self._exchange(part)
        return torch.cat(parts, dim=1) if self.rank == 0 else part

    def smallest(self, number: int) -> int:
        return int(min(self._exchange(number)))

    def counted(self, graphs: StepGraphs) -> StepGraphs:
        return graphs

    def _exchange(self, value: Any) -> list[Any]:
        self._shared[self.rank] = value
        self._barrier.wait(60)
        values = list(self._shared)
        self._barrier.wait(60)
        return values


@pytest.mark.parametrize("name", CONFIGS)
def test_parts_compute_what_the_whole_does(
    name: str,
    tmp_path: Path,
    make_hf_model: Callable[[Any], Any],
    make_runner: Callable[..., Any],
    random_texts: Callable[..., list[list[int]]],
) -> None:
    config, size = CONFIGS[name]
    make_hf_model(config).save_pretrained(tmp_path)
    texts = random_texts(config.vocab_size, (37, 5, 22))
    kernels = select_kernels("cpu", "torch")
    whole = load_model(resolve_model(tmp_path), kernels)
    expected = make_runner(whole, kernels).run(texts)
    shared, barrier = [None] * size, threading.Barrier(size)

    def compute(rank: int) -> tuple[Model, list[Tensor]]:
        torch.set_num_threads(1)
        model = load_model(resolve_model(tmp_path), kernels, group=ThreadRank(rank, shared, barrier))
        return model, make_runner(model, kernels).run(texts)

    with ThreadPoolExecutor(size) as pool:
        results = list(pool.map(compute, range(size)))
    for logits, wanted in zip(results[0][1], expected, strict=True):
        torch.testing.assert_close(logits.log_softmax(-1), wanted.log_softmax(-1), atol=1e-5, rtol=0)
    assert sum(model.config.num_heads for model, _ in results) == whole.config.num_heads
    assert all(model.config.num_kv_heads == max(1, whole.config.num_kv_heads // size) for model, _ in results)
    assert sum(model.config.intermediate_size for model, _ in results) == whole.config.intermediate_size
