"""Tiny random models of transformers as the oracle, and a runner that pages them through our kernels."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ramet.kernels.attention_plan import build_attention_metadata
from ramet.kernels.dispatch import KERNELS, select_kernels
from ramet.kernels.interface import AttentionMetadata, Kernels
from ramet.runtime.models.base import Model
from ramet.runtime.weights.load import load_model
from ramet.runtime.weights.resolve import resolve_model

BLOCK_SIZE = 4
NUM_BLOCKS = 160
TEXT_LENS = (37, 5, 22)
LOGITS_ATOL = 1e-4


@dataclass(frozen=True)
class StepInputs:
    """The part of a ForwardBatch a model reads."""

    token_ids: Tensor
    positions: Tensor
    attention: AttentionMetadata


class PagedRunner:
    """Feeds texts chunk by chunk through a paged cache whose blocks are scattered and interleaved."""

    def __init__(self, model: Model, kernels: Kernels) -> None:
        self.model, self.kernels = model, kernels
        config = model.config
        self.caches = [
            kernels.new_kv_cache(NUM_BLOCKS, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
            for _ in range(config.num_layers)
        ]
        for cache in self.caches:
            for storage in cache:
                storage.fill_(torch.nan)
        self.free = list(range(NUM_BLOCKS))
        random.Random(7).shuffle(self.free)
        self.tables: dict[int, list[int]] = {}
        self.num_done: dict[int, int] = {}

    def step(self, parts: Sequence[tuple[int, Sequence[int]]]) -> list[Tensor]:
        """New tokens of some sequences in one batch; their logits, one tensor [tokens, vocab] a sequence."""
        tokens: list[int] = []
        positions: list[int] = []
        query_starts = [0]
        for seq_id, new_tokens in parts:
            start = self.num_done.get(seq_id, 0)
            end = self.num_done[seq_id] = start + len(new_tokens)
            table = self.tables.setdefault(seq_id, [])
            while len(table) * BLOCK_SIZE < end:
                table.append(self.free.pop())
            tokens += new_tokens
            positions += range(start, end)
            query_starts.append(len(tokens))
        metadata = build_attention_metadata(
            [self.tables[seq_id] for seq_id, _ in parts],
            query_starts,
            [self.num_done[seq_id] for seq_id, _ in parts],
            BLOCK_SIZE,
        )
        prepared = self.kernels.prepare_attention(metadata)
        batch: Any = StepInputs(torch.tensor(tokens), torch.tensor(positions), prepared)
        with torch.inference_mode():
            logits = self.model.logits(self.model.forward(batch, self.caches))
        assert logits.dtype == torch.float32
        return [logits[start:end] for start, end in itertools.pairwise(query_starts)]

    def run(self, texts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Logits of all positions: half of each text in one mixed batch, a chunk of 3, then token by token."""
        rows: list[list[Tensor]] = [[] for _ in texts]
        num_fed = [0] * len(texts)
        step_idx = 0
        while any(num < len(text) for num, text in zip(num_fed, texts, strict=True)):
            parts: list[tuple[int, Sequence[int]]] = []
            for seq_id, text in enumerate(texts):
                size = max(1, len(text) // 2) if step_idx == 0 else 3 if step_idx == 1 else 1
                chunk = text[num_fed[seq_id] : num_fed[seq_id] + size]
                if chunk:
                    parts.append((seq_id, chunk))
            for (seq_id, chunk), logits in zip(parts, self.step(parts), strict=True):
                rows[seq_id].append(logits)
                num_fed[seq_id] += len(chunk)
            step_idx += 1
        return [torch.cat(chunks) for chunks in rows]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny matrices take longer to hand to a second thread than to compute."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(params=sorted(KERNELS.keys() - {"torch_int8", "triton"}))
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Any backend that computes with the weights as they are, and is not interpreted."""
    return select_kernels("cpu", request.param)


@pytest.fixture
def reference_kernels() -> Kernels:
    return select_kernels("cpu", "reference")


@pytest.fixture
def make_runner() -> Callable[[Model, Kernels], PagedRunner]:
    return PagedRunner


@pytest.fixture
def make_hf_model() -> Callable[[Any], Any]:
    """Build a transformers model with weights large enough that a wrong one shows in the logits."""

    def make(config: Any) -> Any:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                is_norm_weight = "norm" in name and name.endswith("weight")
                parameter.copy_(1 + 0.2 * noise if is_norm_weight else 0.15 * noise)
        return model

    return make


@pytest.fixture
def random_texts() -> Callable[..., list[list[int]]]:
    def make(vocab_size: int, lens: Sequence[int] = TEXT_LENS) -> list[list[int]]:
        rng = random.Random(3)
        return [[rng.randrange(vocab_size) for _ in range(length)] for length in lens]

    return make


@pytest.fixture
def hf_logits() -> Callable[[Any, Sequence[int]], Tensor]:
    def run(hf_model: Any, text: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = hf_model(torch.tensor([text]), use_cache=False).logits[0]
        return logits.float()

    return run


@pytest.fixture
def check_equal(
    tmp_path: Path,
    make_hf_model: Callable[[Any], Any],
    hf_logits: Callable[[Any, Sequence[int]], Tensor],
    random_texts: Callable[..., list[list[int]]],
) -> Callable[..., Model]:
    """Save a tiny transformers model, load it through our loader, and compare the logits of every position."""

    def check(
        config: Any, kernels: Kernels, lens: Sequence[int] = TEXT_LENS, max_model_len: int | None = None
    ) -> Model:
        hf_model = make_hf_model(config)
        hf_model.save_pretrained(tmp_path)
        model = load_model(resolve_model(tmp_path), kernels, max_model_len=max_model_len)
        texts = random_texts(config.vocab_size, lens)
        for text, logits in zip(texts, PagedRunner(model, kernels).run(texts), strict=True):
            expected = hf_logits(hf_model, text)
            assert expected.std() > 0.1
            torch.testing.assert_close(logits, expected, atol=LOGITS_ATOL, rtol=1e-4)
        return model

    return check
