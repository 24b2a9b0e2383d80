"""The sampling kernels draw the tokens of the CPU's sampler, which defines them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from ramet.kernels.triton.argmax import argmax
from ramet.kernels.triton.candidates import MAX_CANDIDATES
from ramet.kernels.triton.launch import KernelCall
from ramet.kernels.triton.logits_edit import edit_logits
from ramet.kernels.triton.logits_mask import mask_logits
from ramet.kernels.triton.random_stream import stream_state, uniform_bits
from ramet.kernels.triton.sampling import SamplingTensors, sample, sample_calls
from ramet.runtime.random_stream import waiting_times
from ramet.runtime.sampler import SamplingRow
from ramet.runtime.sampler_numpy import NumpySampler, change_logits
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


def wanted_by(rows: list[SamplingRow]) -> SamplingTensors:
    def signed(seed: int) -> int:
        return seed - (1 << 64) if seed >= 1 << 63 else seed

    params = [row.params for row in rows]
    return SamplingTensors(
        torch.tensor([max(entry.temperature, TINY) if entry.temperature > 0 else 0.0 for entry in params]),
        torch.tensor([entry.top_k for entry in params], dtype=torch.int32),
        torch.tensor([entry.top_p for entry in params], dtype=torch.float64),
        torch.tensor([entry.min_p for entry in params], dtype=torch.float32),
        torch.tensor([signed(row.seed) for row in rows]),
        torch.tensor([row.sample_idx for row in rows]),
        torch.tensor([len(row.token_ids) for row in rows]),
    )


def argument(call: KernelCall, name: str) -> Tensor:
    value = dict(zip(call.kernel.arg_names, call.args, strict=False))[name]
    assert isinstance(value, Tensor)
    return value


def draw(logits: Tensor, rows: list[SamplingRow]) -> list[int]:
    token_ids, peaks = argmax(logits)
    sample(logits, token_ids, peaks, wanted_by(rows))
    return token_ids.tolist()


@pytest.mark.parametrize("vocab_size", [1, 7, 1000, 9001])
def test_the_tokens_of_the_cpu_sampler(vocab_size: int) -> None:
    rows = [make_row(SamplingParams(**knobs), 0xFEDCBA9876543210 + 31 * idx) for idx, knobs in enumerate(KNOBS)]
    logits = make_logits(vocab_size, len(rows), vocab_size)
    untouched = logits.clone()
    expected = [token.token_id for token in NumpySampler().sample(logits, rows)]
    assert draw(logits, rows) == expected
    assert torch.equal(logits, untouched)


def test_rows_of_an_odd_vocabulary_inside_a_larger_tensor() -> None:
    """Neither rows nor their stride are divisible by 16 elements."""
    rows = [make_row(SamplingParams(**knobs), idx) for idx, knobs in enumerate(KNOBS)]
    logits = torch.cat((make_logits(3, len(rows), 1003), torch.full((len(rows), 4), 1e9)), dim=1)[:, 1:1004]
    logits[:, -1] = 0.0
    assert draw(logits, rows) == [token.token_id for token in NumpySampler().sample(logits.contiguous(), rows)]


def test_rows_with_more_candidates_than_there_is_room_for() -> None:
    """Flat ones, beside such as have a few."""
    knobs = [{"top_p": 0.97}, {"top_p": 0.97}, {"top_k": 40}, {"top_k": 19_000}, {"top_k": 30, "top_p": 0.8}, {}]
    rows = [make_row(SamplingParams(**entry), seed) for seed, entry in enumerate(knobs)]
    logits = torch.randn(len(rows), 20_000, generator=torch.Generator().manual_seed(0))
    logits[1] *= 5
    logits[3] *= 0.01
    calls = sample_calls(logits, *argmax(logits), wanted_by(rows))
    for call in calls[:2]:
        call.run()
    num_candidates = argument(calls[1], "num_candidates")
    assert [count > MAX_CANDIDATES for count in num_candidates[:5].tolist()] == [True, False, False, True, False]
    assert draw(logits, rows) == [token.token_id for token in NumpySampler().sample(logits, rows)]


@pytest.mark.parametrize("scale", [0.1, 1.0, 7.0])
def test_candidates_are_the_largest_logits_in_order_of_their_ids(scale: float) -> None:
    """In several pieces, with ties."""
    logits = (torch.randn(3, 20_000, generator=torch.Generator().manual_seed(1)) * scale * 8).round() / 8
    rows = [make_row(SamplingParams(top_k=top_k, temperature=0.5), 0) for top_k in (1, 37, 600)]
    calls = sample_calls(logits, *argmax(logits), wanted_by(rows))
    for call in calls[:3]:
        call.run()
    counts, ids, values = (argument(calls[2], name) for name in ("num_candidates", "candidate_ids", "candidate_logits"))
    for row, (count, wanted) in enumerate(zip(counts.tolist(), (1, 37, 600), strict=True)):
        if count > MAX_CANDIDATES:
            continue
        assert count >= wanted
        smallest = logits[row].sort(descending=True).values[count - 1]
        expected = (logits[row] >= smallest).nonzero().flatten()
        assert ids[row, :count].tolist() == expected.tolist()
        assert torch.equal(values[row, :count], logits[row, expected])


def test_launches_are_spared_where_no_row_is_cut() -> None:
    rows = [make_row(SamplingParams(**entry), seed) for seed, entry in enumerate([{}, {"min_p": 0.1}])]
    logits = make_logits(0, 2, 9001)
    token_ids, peaks = argmax(logits)
    wanted = replace(wanted_by(rows), has_cuts=False)
    assert len(sample_calls(logits, token_ids, peaks, wanted)) == 2
    sample(logits, token_ids, peaks, wanted)
    assert token_ids.tolist() == [token.token_id for token in NumpySampler().sample(logits, rows)]


def test_tied_logits_keep_the_lower_ids() -> None:
    logits = torch.zeros(12, 300)
    logits[:, 150:] = 1.0
    rows = [make_row(SamplingParams(top_k=4 + 150 * (seed % 2)), seed) for seed in range(12)]
    drawn = draw(logits, rows)
    assert drawn == [token.token_id for token in NumpySampler().sample(logits, rows)]
    assert set(drawn[::2]) <= {150, 151, 152, 153}


def test_rows_that_cannot_be_sampled_show_it_in_their_peak() -> None:
    logits = torch.randn(4, 70)
    logits[0, 3], logits[1, 5], logits[2] = float("nan"), float("inf"), float("-inf")
    token_ids, peaks = argmax(logits)
    before = token_ids.clone()
    wanted = SamplingTensors(
        *(torch.ones(4), torch.zeros(4, dtype=torch.int32), torch.ones(4, dtype=torch.float64)),
        *(torch.zeros(4), *(torch.zeros(4, dtype=torch.int64) for _ in range(3))),
    )
    sample(logits, token_ids, peaks, wanted)
    assert peaks.isnan().tolist() == [True, False, False, False]
    assert peaks[1:3].tolist() == [float("inf"), float("-inf")]
    assert peaks[3] == logits[3].max()
    assert torch.equal(token_ids[:3], before[:3])


@pytest.mark.parametrize("vocab_size", [1, 31, 1000, 17_000])
def test_argmax_takes_the_first_of_equals(vocab_size: int) -> None:
    logits = torch.randn(5, vocab_size + 3)[:, :vocab_size]
    logits[1] = 0.0
    logits[2, -1] = logits[2, vocab_size // 2] = 100.0
    token_ids, peaks = argmax(logits)
    assert token_ids.tolist() == logits.numpy().argmax(axis=1).tolist()
    assert torch.equal(peaks, logits.amax(dim=1))


@pytest.mark.parametrize("place", [0, 5, 16_390])
def test_the_token_is_one_of_the_vocabulary_whatever_the_logits(place: int) -> None:
    """A step may look up its embedding before anyone has seen that the row cannot be sampled."""
    logits = torch.full((4, 17_000), -torch.inf)
    logits[1, place], logits[2, place], logits[3] = torch.nan, torch.inf, torch.nan
    token_ids, peaks = argmax(logits)
    assert token_ids.tolist() == [0, place, place, 0]
    assert peaks.isnan().tolist() == [False, True, False, True]


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1000, 17_000])
def test_masks_forbid_what_their_bits_do_not_allow(vocab_size: int) -> None:
    allowed = np.random.default_rng(vocab_size).random((2, vocab_size)) < 0.5
    padded = np.zeros((2, -(-vocab_size // 32) * 32), dtype=bool)
    padded[:, :vocab_size] = allowed
    masks = torch.from_numpy(np.packbits(padded, axis=1, bitorder="little").view(np.int32))
    logits = torch.randn(4, vocab_size)
    expected = logits.clone()
    for row, mask in zip((3, 1), allowed, strict=True):
        expected[row, torch.from_numpy(~mask)] = float("-inf")
    mask_logits(logits, masks, torch.tensor([3, 1], dtype=torch.int32))
    assert torch.equal(logits, expected)


def test_edits_are_those_of_the_cpu_sampler() -> None:
    """Bans, biases and penalties, to the bit."""
    vocab_size = 50
    params = [
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(presence_penalty=0.7, frequency_penalty=-0.3),
        SamplingParams(),
        SamplingParams(repetition_penalty=0.7, frequency_penalty=0.1, logit_bias={3: 2.5, 40: -100.0}),
    ]
    history = [3, 7, 7, 9, 3, 3, 11, 40, 11]
    rows = [SamplingRow(entry, 0, 0, history, 4, frozenset({7, 20})) for entry in params]
    logits = torch.randn(len(rows), vocab_size)
    edits: list[tuple[int, int, float, int]] = []
    for row_idx, row in enumerate(rows):
        bias = {**(row.params.logit_bias or {}), **dict.fromkeys(row.banned_token_ids, float("-inf"))}
        for token_id in sorted({*bias, *history}):
            count = history[4:].count(token_id) if token_id in history else -1
            edits.append((row_idx, token_id, bias.get(token_id, 0.0), count))
    row_indices, token_ids, biases, counts = (torch.tensor(column) for column in zip(*edits, strict=True))
    expected = np.stack([change_logits(values, row) for values, row in zip(logits.numpy(), rows, strict=True)])
    edit_logits(
        logits,
        row_indices.int(),
        token_ids.int(),
        biases.float(),
        counts.int(),
        torch.tensor([entry.repetition_penalty for entry in params]),
        torch.tensor([entry.presence_penalty for entry in params], dtype=torch.float64),
        torch.tensor([entry.frequency_penalty for entry in params], dtype=torch.float64),
    )
    assert np.array_equal(logits.numpy(), expected)


@triton.jit
def _uniform_kernel(seeds, sample_indices, positions, bits, NUM_TOKENS: tl.constexpr):
    row = tl.program_id(0)
    token = tl.arange(0, NUM_TOKENS)
    seed = tl.load(seeds + row).to(tl.int64).to(tl.uint64, bitcast=True)
    sample_idx = tl.load(sample_indices + row).to(tl.int64).to(tl.uint64, bitcast=True)
    position = tl.load(positions + row).to(tl.int64).to(tl.uint64, bitcast=True)
    state = stream_state(seed, sample_idx, position)
    tl.store(bits + row * NUM_TOKENS + token, uniform_bits(state, token.to(tl.uint64)).to(tl.int64))


def test_the_random_numbers_are_those_of_the_cpu() -> None:
    keys = [(0, 0, 0), (5, 3, 17), (-1, 1, 100_000), (-(1 << 63), 0, 1)]
    columns = [torch.tensor(column) for column in zip(*keys, strict=True)]
    bits = torch.empty((4, 256), dtype=torch.int64)
    _uniform_kernel[(4,)](*columns, bits, NUM_TOKENS=256)
    for row, (seed, sample_idx, position) in enumerate(keys):
        expected = waiting_times(seed % (1 << 64), sample_idx, position, np.arange(256))
        assert np.array_equal(-np.log1p(-bits[row].numpy() * 2.0**-53), expected)
