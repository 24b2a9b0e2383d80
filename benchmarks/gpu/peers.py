"""transformers on the same weights: `generate` over batches, and its continuous batching."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from benchmarks.cpu.workloads import Shape
from ramet.runtime.weights.base import Checkpoint

from .engine_session import FOREVER, TimeIsUpError
from .models import ModelStore

MAX_ROWS = 32
"""Most prompts of one `generate`: a batch of long prompts that share nothing must fit beside two models."""


def load_transformers(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> Any:
    """The checkpoint's weights in transformers' own class, with PyTorch's attention."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            LlamaConfig(**checkpoint.config), dtype=dtype, attn_implementation="sdpa"
        )
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in checkpoint.tensor_names():
            if name in parameters:
                host = torch.empty(checkpoint.shape(name), dtype=dtype)
                checkpoint.read_into(name, host)
                parameters[name].copy_(host)
    return model.eval()


class PeerModels:
    """transformers' model of a name, as long as no other one is asked for."""

    def __init__(self, store: ModelStore, device: torch.device, dtype: torch.dtype) -> None:
        self._store = store
        self._device = device
        self._dtype = dtype
        self._name: str | None = None
        self._model: Any = None

    def load(self, name: str) -> Any:
        if name != self._name:
            self._model, self._name = None, None  # before there are two in memory
            self._model = load_transformers(self._store.checkpoint(name), self._device, self._dtype)
            self._name = name
        return self._model


class GenerateSession:
    """`generate` on prompts of one length, MAX_ROWS at a time. Nothing is reused from call to call, as in a script
    without an engine."""

    primes_prefix = False

    def __init__(self, model: Any) -> None:
        self.deadline = FOREVER
        self._model = model

    def begin(self, shape: Shape) -> None:
        pass

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        replies: list[list[int]] = []
        for first in range(0, len(prompts), MAX_ROWS):
            token_ids = torch.tensor(prompts[first : first + MAX_ROWS], device=self._model.device)
            sequences = self._model.generate(
                token_ids,
                attention_mask=torch.ones_like(token_ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
                stopping_criteria=[self._give_up_in_time],
            )
            replies += sequences[:, token_ids.shape[1] :].tolist()
        return replies

    def choose(self, prefix: list[int], questions: list[list[int]], choices: list[list[int]]) -> list[int]:
        raise NotImplementedError("no workload of a GPU asks for it")

    def close(self) -> None:
        pass

    def _give_up_in_time(self, token_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        if self.deadline.is_over:
            raise TimeIsUpError(f"time was up after {token_ids.shape[1]} tokens of each of {len(token_ids)} sequences")
        return torch.zeros(len(token_ids), dtype=torch.bool, device=token_ids.device)


class ContinuousBatchingSession:
    """transformers' manager of continuous batching with its defaults, warmed up; it may share blocks of prefixes.

    Args:
        is_tiny: give it a small cache: on a CPU it would take nearly all memory there is.
    """

    primes_prefix = False

    def __init__(self, model: Any, *, is_tiny: bool = False) -> None:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        # -1 is no token, so nothing ends early.
        config = GenerationConfig(do_sample=False, max_new_tokens=64, eos_token_id=-1, pad_token_id=0)
        self.deadline = FOREVER
        options = {}
        if is_tiny:
            options["continuous_batching_config"] = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)
        self._context: AbstractContextManager[Any] = model.continuous_batching_context_manager(
            generation_config=config, timeout=5, **options
        )
        self._manager = self._context.__enter__()

    def begin(self, shape: Shape) -> None:
        pass

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        request_ids = self._manager.add_requests(inputs=prompts, max_new_tokens=num_tokens)
        replies: dict[str, list[int]] = {}
        for result in self._results():
            if result.error is not None:
                raise RuntimeError(f"a request of continuous batching failed: {result.error}")
            if result.is_finished():
                replies[result.request_id] = list(result.generated_tokens)
            if all(request_id in replies for request_id in request_ids):
                break
        return [replies[request_id] for request_id in request_ids]

    def choose(self, prefix: list[int], questions: list[list[int]], choices: list[list[int]]) -> list[int]:
        raise NotImplementedError("no workload of a GPU asks for it")

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    def _results(self) -> Iterator[Any]:
        while True:
            result = self._manager.get_result(timeout=0.2)
            if result is not None:
                yield result
            elif self.deadline.is_over:
                raise TimeIsUpError("time was up before all requests were done")
            elif not self._manager.is_running():
                raise RuntimeError("the thread of continuous batching ended; its log says why")
