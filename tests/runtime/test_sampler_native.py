"""The C++ sampler against the numpy one, on every instruction set this machine has."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.kernels.cpu.isa import supported_isas
from ramet.runtime.logprobs import logprobs_of
from ramet.runtime.sampler import SampledToken, SamplingRow
from ramet.runtime.sampler_native import NativeSampler
from ramet.runtime.sampler_numpy import NumpySampler
from ramet.sampling_params import SamplingParams

pytestmark = pytest.mark.compiler

VOCAB_SIZES = [1, 7, 63, 64, 65, 200, 1000]
KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 1e-300, 0.1, 0.7, 3.0]),
        "top_k": st.sampled_from([-1, 1, 3, 40, 900, 2000]),
        # No share of equal weights is one of these, so the order of a sum cannot decide.
        "top_p": st.sampled_from([1e-6, 0.0513, 0.5317, 0.9113, 0.9993]),
        "min_p": st.sampled_from([0.0, 1e-4, 0.05, 1.0]),
        "repetition_penalty": st.sampled_from([0.5, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.5]),
        "frequency_penalty": st.sampled_from([-0.5, 0.7]),
        "logprobs": st.sampled_from([0, 3, 1000]),
    },
)


@pytest.fixture(scope="module")
def native(sampling_kernels) -> NativeSampler:
    return NativeSampler(sampling_kernels(None, 2))


def make_row(params: SamplingParams, vocab_size: int, seed: int, **fields) -> SamplingRow:
    """A row with a history of its own: 9 prompt tokens and 6 of output, some more than once."""
    token_ids = [(seed * 7 + idx * idx) % vocab_size for idx in range(15)]
    return SamplingRow(params, seed, seed % 3, token_ids, 9, **fields)


def make_logits(seed: int, num_rows: int, vocab_size: int) -> torch.Tensor:
    """Peaked, flat and tied rows, some with -inf."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_rows, vocab_size)) * rng.choice([0.2, 1.0, 4.0, 12.0], size=(num_rows, 1))
    tied = rng.random(num_rows) < 0.3
    logits[tied] = np.round(logits[tied] * 2) / 2
    logits[rng.random(logits.shape) < 0.1] = -np.inf
    logits[:, 0] = 0.0
    return torch.from_numpy(logits.astype(np.float32))


def assert_same(actual: list[SampledToken], expected: list[SampledToken]) -> None:
    """Equal tokens, errors, listings and ranks; logprobs to the last few bits of a double."""
    assert [(token.token_id, token.error) for token in actual] == [(token.token_id, token.error) for token in expected]
    for mine, theirs in zip(actual, expected, strict=True):
        assert (mine.logprobs is None) == (theirs.logprobs is None)
        if mine.logprobs is None or theirs.logprobs is None:
            continue
        assert [(key, entry.rank) for key, entry in mine.logprobs.items()] == [
            (key, entry.rank) for key, entry in theirs.logprobs.items()
        ]
        for key, entry in mine.logprobs.items():
            assert entry.logprob == pytest.approx(theirs.logprobs[key].logprob, abs=1e-12)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.sampled_from(VOCAB_SIZES), KNOBS, st.booleans(), st.booleans())
def test_the_same_tokens_as_numpy(native, seed, vocab_size, knobs, has_bans, has_mask):
    logits = make_logits(seed, 3, vocab_size)
    bias = {0: 1.5, vocab_size - 1: -100.0} if seed % 2 else None
    mask = torch.from_numpy(np.random.default_rng(seed).random(vocab_size) < 0.5) if has_mask else None
    banned = frozenset({0, vocab_size // 2, vocab_size + 5}) if has_bans else frozenset()
    params = SamplingParams(logit_bias=bias, **knobs)
    rows = [make_row(params, vocab_size, seed + idx, banned_token_ids=banned, allowed=mask) for idx in range(3)]
    assert_same(native.sample(logits, rows), NumpySampler().sample(logits, rows))


@pytest.mark.parametrize(
    "knobs", [{}, {"temperature": 0.3}, {"top_p": 0.95}, {"top_k": 40, "top_p": 0.9}, {"top_k": 5000}, {"min_p": 0.02}]
)
def test_the_same_tokens_as_numpy_from_a_real_vocabulary(native, knobs):
    """A draw changes only where two tokens arrive within the rounding of an exponential: not in 192 rows."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(48, 49_152, generator=generator) * torch.tensor([0.3, 1.0, 3.0, 6.0]).repeat(12)[:, None]
    for start in range(4):
        rows = [make_row(SamplingParams(**knobs), 49_152, 1000 * start + idx) for idx in range(48)]
        assert_same(native.sample(logits, rows), NumpySampler().sample(logits, rows))


def test_every_instruction_set_and_number_of_threads_gives_the_same_bits(sampling_kernels):
    logits = make_logits(5, 24, 3001)
    knobs = [{}, {"top_p": 0.9, "logprobs": 5}, {"temperature": 0.0, "logprobs": 0}, {"top_k": 70}, {"min_p": 0.1}]
    rows = [make_row(SamplingParams(**knobs[idx % 5]), 3001, idx) for idx in range(24)]
    expected = NativeSampler(sampling_kernels("portable", 1)).sample(logits, rows)
    for isa in supported_isas():
        for num_threads in (1, 2):
            assert NativeSampler(sampling_kernels(isa, num_threads)).sample(logits, rows) == expected


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1000])
def test_a_mask_of_bits_is_the_mask_of_truth_values(native, vocab_size):
    mask = np.random.default_rng(vocab_size).random(vocab_size) < 0.3
    mask[0] = True
    padded = np.zeros(-(-vocab_size // 32) * 32, dtype=bool)
    padded[:vocab_size] = mask
    bits = torch.from_numpy(np.packbits(padded, bitorder="little").view(np.int32))
    logits = torch.randn(20, vocab_size, generator=torch.Generator().manual_seed(1))
    by_truth = [make_row(SamplingParams(), vocab_size, seed, allowed=torch.from_numpy(mask)) for seed in range(20)]
    by_bits = [make_row(SamplingParams(), vocab_size, seed, allowed=bits) for seed in range(20)]
    sampled = native.sample(logits, by_bits)
    assert sampled == native.sample(logits, by_truth)
    assert sampled == NumpySampler().sample(logits, by_bits)
    assert all(mask[token.token_id] for token in sampled)


@pytest.mark.parametrize("top_n", [0, 1, 5, 900, 3000])
def test_logprobs_are_those_of_numpy(native, top_n):
    logits = make_logits(9, 12, 1001)
    token_ids = list(range(0, 600, 50))
    for mine, theirs in zip(
        native.logprobs(logits, token_ids, top_n), logprobs_of(logits, token_ids, top_n), strict=True
    ):
        assert [(key, entry.rank) for key, entry in mine.items()] == [
            (key, entry.rank) for key, entry in theirs.items()
        ]
        for key, entry in mine.items():
            assert entry.logprob == pytest.approx(theirs[key].logprob, abs=1e-12)


def test_logprobs_of_a_broken_row_are_nan_and_the_others_fine(native):
    logits = torch.zeros(3, 100)
    logits[0, 5], logits[1, 5] = math.nan, math.inf
    *broken, fine = native.logprobs(logits, [7, 7, 7], 2)
    for listed in broken:
        assert list(listed) == [7]
        assert math.isnan(listed[7].logprob)
    assert fine[7].logprob == pytest.approx(-math.log(100), abs=1e-12)
    assert list(fine) == [7, 0, 1]


def test_a_token_has_the_same_logprob_by_itself_and_in_a_listing(native):
    logits = make_logits(4, 3, 1001)
    rows, token_ids = [2, 0, 0, 1, 0], [7, 3, 500, 0, 3]
    listings = [native.logprobs(logits[row : row + 1], [token], 0) for row, token in zip(rows, token_ids, strict=True)]
    found = native.token_logprobs(logits, rows, token_ids)
    assert found == [listing[token].logprob for (listing,), token in zip(listings, token_ids, strict=True)]


def test_no_rows_have_no_logprobs(native):
    assert native.logprobs(torch.zeros(0, 5), [], 3) == []
