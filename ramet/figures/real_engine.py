"""The bundled model's engine without a thread around it, for figures that look between its steps."""

from __future__ import annotations

from typing import Any

import torch

from ..runtime.config import EngineConfig, default_kernels, default_num_threads
from ..runtime.engine import Engine
from ..runtime.runner_factory import build_runner, runner_candidates
from ..runtime.runner_spec import RunnerSpec
from ..runtime.tokenizer import load_tokenizer
from ..runtime.weights.resolve import resolve_model


class RealModel:
    """The bundled model, loaded once. Each engine made of it has a prefix cache of its own over the one KV storage, so
    only one of them may have live requests at a time.

    Args:
        num_blocks: blocks in the KV storage.

    Attributes:
        description: model, kernels and threads, for the reader of a figure.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        num_threads = default_num_threads()
        torch.set_num_threads(num_threads)
        checkpoint = resolve_model("smollm2")
        self._tokenizer = load_tokenizer(checkpoint.tokenizer_source)
        spec = RunnerSpec(checkpoint=checkpoint, config=self._config(), device="auto", num_threads=num_threads)
        self._loaded = build_runner(runner_candidates(default_kernels(), "auto"), spec)
        self.description = f"SmolLM2-135M, {self._loaded.kernels_name} kernels, {num_threads} threads"

    def engine(self, **options: Any) -> Engine:
        """A new engine with these options of EngineConfig; block_size and num_blocks are the model's."""
        loaded = self._loaded
        return Engine(self._config(**options), loaded.runner, self._tokenizer, loaded.max_model_len, loaded.sampler)

    def _config(self, **options: Any) -> EngineConfig:
        return EngineConfig(seed=0, num_blocks=self._num_blocks, overlap_schedule=False, **options)
