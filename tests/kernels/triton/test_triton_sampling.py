"""The sampling kernels draw the tokens of the CPU's sampler, which defines them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ramet.kernels.triton.argmax import argmax
from ramet.kernels.triton.sampling import SamplingTensors, sample
from ramet.runtime.random_stream import waiting_times
from ramet.runtime.sampler import SamplingRow
from ramet.runtime.sampler_numpy import NumpySampler
from ramet.sampling_params import SamplingParams

TINY = float(np.finfo(np.float32).tiny)
KNOBS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"temperature": 3.0, "top_k": 1},
    {"top_k": 3},
    {"top_k": 40, "top_p": 0.9113},
    {"top_k": 5000},
    {"top_p": 0.5317},
    {"top_p": 1e-6},
    {"top_p": 0.9993, "temperature": 2.0},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.7171, "min_p": 0.02, "temperature": 1.7},
]


def make_logits(seed: int, num_rows: int, vocab_size: int) -> Tensor:
    """Peaked, flat and tied rows, some with -inf."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_rows, vocab_size)) * rng.choice([0.2, 1.0, 4.0, 12.0], size=(num_rows, 1))
    tied = rng.random(num_rows) < 0.3
    logits[tied] = np.round(logits[tied] * 2) / 2
    logits[rng.random(logits.shape) < 0.1] = -np.inf
    logits[:, 0] = 0.0
    return torch.from_numpy(logits.astype(np.float32))


def make_row(params: SamplingParams, seed: int) -> SamplingRow:
    return SamplingRow(params, seed, seed % 3, list(range(7 + seed % 5)), 3)


def draw(logits: Tensor, rows: list[SamplingRow]) -> list[int]:
    def signed(seed: int) -> int:
        return seed - (1 << 64) if seed >= 1 << 63 else seed

    params = [row.params for row in rows]
    wanted = SamplingTensors(
        torch.tensor([max(entry.temperature, TINY) if entry.temperature > 0 else 0.0 for entry in params]),
        torch.tensor([entry.top_k for entry in params], dtype=torch.int32),
        torch.tensor([entry.top_p for entry in params], dtype=torch.float64),
        torch.tensor([entry.min_p for entry in params], dtype=torch.float32),
        torch.tensor([signed(row.seed) for row in rows]),
        torch.tensor([row.sample_idx for row in rows]),
        torch.tensor([len(row.token_ids) for row in rows]),
    )
    token_ids, peaks = argmax(logits)
    sample(logits, token_ids, peaks, wanted)
    return token_ids.tolist()


@pytest.mark.parametrize("vocab_size", [1, 7, 1000, 9001])
def test_the_tokens_of_the_cpu_sampler(vocab_size: int) -> None:
    rows = [make_row(SamplingParams(**knobs), 0xFEDCBA9876543210 + 31 * idx) for idx, knobs in enumerate(KNOBS)]
    logits = make_logits(vocab_size, len(rows), vocab_size)
    untouched = logits.clone()
    expected = [token.token_id for token in NumpySampler().sample(logits, rows)]
    assert draw(logits, rows) == expected
    assert torch.equal(logits, untouched)
