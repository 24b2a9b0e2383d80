"""What every sampler promises: the distribution of every knob, and independence of everything but the row.

The knobs themselves are tested against a plain float64 definition, by looking into the numpy one.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.random_stream import waiting_times
from ramet.runtime.sampler import Sampler, SamplingRow
from ramet.runtime.sampler_native import NativeSampler
from ramet.runtime.sampler_numpy import NumpySampler, change_logits, kept_tokens
from ramet.sampling_params import SamplingParams


def row(params: SamplingParams, prompt=(1, 2), output=(), seed=0, sample_idx=0, banned=(), allowed=None) -> SamplingRow:
    return SamplingRow(params, seed, sample_idx, [*prompt, *output], len(prompt), frozenset(banned), allowed)


SAMPLERS = {
    "numpy": lambda kernels: NumpySampler(),
    "native": lambda kernels: NativeSampler(kernels(None, 2)),
}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.compiler] * (name == "native")) for name in SAMPLERS]
)
def sampler(request, sampling_kernels) -> Sampler:
    return SAMPLERS[request.param](sampling_kernels)


def sample_one(sampler: Sampler, logits: np.ndarray, one: SamplingRow):
    return sampler.sample(torch.from_numpy(logits)[None], [one])[0]


def reference_distribution(logits: np.ndarray, one: SamplingRow) -> np.ndarray:
    """The probabilities of every token, spelled out with sorted Python lists."""
    params, values = one.params, [float(value) for value in logits]
    output = list(one.token_ids[one.num_prompt_tokens :])
    for token_id in range(len(values)):
        if one.allowed is not None and not bool(one.allowed[token_id]):
            values[token_id] = -math.inf
        if token_id in one.banned_token_ids:
            values[token_id] = -math.inf
        values[token_id] += (params.logit_bias or {}).get(token_id, 0.0)
        if token_id in one.token_ids:
            is_positive = values[token_id] > 0
            values[token_id] *= 1 / params.repetition_penalty if is_positive else params.repetition_penalty
        if token_id in output:
            values[token_id] -= params.presence_penalty + params.frequency_penalty * output.count(token_id)
    top = max(values)
    weights = [math.exp((value - top) / params.temperature) for value in values]
    order = sorted(range(len(values)), key=lambda token_id: (-values[token_id], token_id))
    if 0 < params.top_k < len(values):
        order = order[: params.top_k]
    total, kept, reached = sum(weights[token_id] for token_id in order), [], 0.0
    for token_id in order:
        kept.append(token_id)
        reached += weights[token_id]
        if reached >= params.top_p * total * (1 - 1e-12):
            break
    kept = [token_id for token_id in kept if weights[token_id] >= params.min_p]
    result = np.zeros(len(values))
    result[kept] = [weights[token_id] for token_id in kept]
    return result / result.sum()


def distribution(logits: np.ndarray, one: SamplingRow) -> np.ndarray:
    changed = change_logits(logits, one)
    token_ids, weights = kept_tokens(changed, one.params)
    result = np.zeros(logits.shape[0])
    result[slice(None) if token_ids is None else token_ids] = weights
    return result / result.sum()


KNOBS = st.fixed_dictionaries(
    {},
    optional={
        # From 0.3 up, so that every weight counts for more than the tolerance of the reference's top-p.
        "temperature": st.sampled_from([0.3, 0.7, 1.0, 3.0]),
        "top_k": st.sampled_from([-1, 0, 1, 3, 20, 1000]),
        "top_p": st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
        "min_p": st.sampled_from([0.0, 0.05, 0.5, 1.0]),
        "repetition_penalty": st.sampled_from([0.5, 1.3, 2.0]),
        "presence_penalty": st.sampled_from([-1.0, 0.5]),
        "frequency_penalty": st.sampled_from([-0.5, 0.7]),
        "logit_bias": st.dictionaries(st.integers(0, 29), st.sampled_from([-100.0, -1.0, 2.5]), max_size=3),
    },
)
SMALL_LOGITS = st.lists(st.sampled_from([-math.inf, -3.0, -0.5, 0.0, 0.25, 1.0, 1.5, 4.0]), min_size=30, max_size=30)


@settings(max_examples=300, deadline=None)
@given(SMALL_LOGITS, KNOBS, st.lists(st.integers(0, 29), max_size=6), st.lists(st.integers(0, 29), max_size=6))
def test_every_knob_equals_its_definition(values, knobs, prompt, output):
    logits = np.array(values, dtype=np.float32)
    one = row(SamplingParams(**knobs), prompt, output)
    if not np.isfinite(logits).any():
        return
    np.testing.assert_allclose(distribution(logits, one), reference_distribution(logits, one), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("knobs", [{"top_p": 0.97}, {"top_p": 0.97, "temperature": 4.0}, {"top_k": 3000, "top_p": 0.9}])
def test_a_nucleus_of_thousands_equals_its_definition(knobs):
    logits = np.random.default_rng(3).normal(size=5000).astype(np.float32)
    one = row(SamplingParams(**knobs))
    expected = reference_distribution(logits, one)
    assert np.count_nonzero(expected) > 1024
    np.testing.assert_allclose(distribution(logits, one), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "knobs",
    [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 6, "top_p": 0.9, "min_p": 0.05}],
)
def test_samples_follow_the_distribution(sampler, knobs):
    """Chi-square over 10,000 positions; the seed is fixed, so this is one draw, far inside the 99.9 % bound."""
    logits = np.random.default_rng(5).normal(scale=1.5, size=600).astype(np.float32)
    logits[12:] -= 8.0
    params = SamplingParams(**knobs)
    expected = reference_distribution(logits, row(params))
    num_draws = 10_000
    matrix = torch.from_numpy(logits).expand(200, -1)
    counts = np.zeros(logits.shape[0])
    for start in range(0, num_draws, 200):
        rows = [SamplingRow(params, 7, 0, range(start + idx), 0) for idx in range(200)]
        for sampled in sampler.sample(matrix, rows):
            counts[sampled.token_id] += 1
    assert counts[expected == 0].sum() == 0
    is_common = expected * num_draws >= 5
    observed = np.append(counts[is_common], counts[~is_common].sum())
    wanted = np.append(expected[is_common], expected[~is_common].sum()) * num_draws
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    degrees = len(wanted) - 1
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    assert statistic < degrees + 3.1 * math.sqrt(2 * degrees) + 4


def test_greedy_takes_the_first_of_the_largest(sampler):
    logits = np.array([[0.0, 2.0, 2.0, 1.0], [5.0, 5.0, 5.0, 5.0]], dtype=np.float32)
    sampled = sampler.sample(torch.from_numpy(logits), [row(SamplingParams(temperature=0.0))] * 2)
    assert [token.token_id for token in sampled] == [1, 0]


def test_a_row_is_the_same_alone_and_in_any_batch(sampler):
    generator = np.random.default_rng(11)
    logits = torch.from_numpy(generator.normal(scale=2, size=(12, 700)).astype(np.float32))
    knobs = [
        {"top_p": 0.9},
        {"temperature": 0.0, "logprobs": 3},
        {"repetition_penalty": 1.2, "logprobs": 2},
        {"top_k": 9},
    ]
    rows = [
        row(SamplingParams(**knobs[idx % 4]), prompt=range(idx), output=range(5), seed=idx, sample_idx=idx % 3)
        for idx in range(12)
    ]
    alone = [sampler.sample(logits[idx : idx + 1], [rows[idx]])[0] for idx in range(12)]
    assert sampler.sample(logits, rows) == alone
    order = generator.permutation(12).tolist()
    shuffled = sampler.sample(logits[order], [rows[idx] for idx in order])
    assert shuffled == [alone[idx] for idx in order]


def test_the_draw_depends_on_seed_sample_and_position(sampler):
    logits = np.zeros(5000, dtype=np.float32)
    params = SamplingParams()
    first = sample_one(sampler, logits, row(params)).token_id
    assert sample_one(sampler, logits, row(params)).token_id == first
    others = [row(params, seed=1), row(params, sample_idx=1), row(params, output=[3])]
    assert all(sample_one(sampler, logits, other).token_id != first for other in others)
    moved = row(params, prompt=[9], output=[8])  # the same number of tokens, other ones
    assert sample_one(sampler, logits, moved).token_id == first


def test_logits_are_left_as_they_are(sampler):
    logits = torch.arange(8, dtype=torch.float32)[None].clone()
    before = logits.clone()
    params = SamplingParams(logit_bias={1: 5.0}, repetition_penalty=2.0, presence_penalty=1.0, top_p=0.5)
    sampler.sample(logits, [row(params, output=[3], banned=[7])])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_without_usable_logits_fails_alone(sampler, value):
    logits = torch.zeros(3, 6)
    logits[1] = value
    for params in (SamplingParams(temperature=0.0), SamplingParams()):
        sampled = sampler.sample(logits, [row(params)] * 3)
        assert [token.error is None for token in sampled] == [True, False, True]
        assert "not finite" in str(sampled[1].error)


def test_one_nan_among_finite_logits_is_an_error(sampler):
    logits = torch.arange(6, dtype=torch.float32)[None].clone()
    logits[0, 2] = math.nan
    assert "nan" in str(sampler.sample(logits, [row(SamplingParams())])[0].error)


def test_a_row_with_everything_banned_fails_alone(sampler):
    params = SamplingParams()
    rows = [row(params, banned=range(4)), row(params), row(params, allowed=torch.zeros(4, dtype=torch.bool))]
    sampled = sampler.sample(torch.zeros(3, 4), rows)
    assert [token.error is None for token in sampled] == [False, True, False]
    assert "banned" in str(sampled[0].error)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_k=5),
        SamplingParams(top_k=5000),
        SamplingParams(top_p=0.3),
        SamplingParams(min_p=0.9),
        SamplingParams(temperature=0.0),
    ],
)
def test_the_only_finite_logit_is_taken(sampler, params):
    logits = np.full(1000, -np.inf, dtype=np.float32)
    logits[777] = -50.0
    assert sample_one(sampler, logits, row(params)).token_id == 777


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.3, 3.0, 9.0])
def test_a_nucleus_is_the_fewest_that_reach_it(top_p, scale):
    """Flat and peaked rows of a real vocabulary's size, with the ties that logits of bf16 have."""
    logits = torch.randn(49_152, generator=torch.Generator().manual_seed(1)) * scale
    tied = logits.bfloat16().float().numpy()
    token_ids, weights = kept_tokens(tied, SamplingParams(top_p=top_p))
    assert token_ids is not None
    assert np.all(np.diff(token_ids) > 0)
    total = np.exp(tied.astype(np.float64) - tied.max()).sum()
    mass = weights.sum(dtype=np.float64)
    assert mass >= top_p * total * (1 - 1e-6)
    assert mass - weights.min() < top_p * total * (1 + 1e-6)
    lowest = tied[token_ids].min()
    tied_ids = np.flatnonzero(tied == lowest)
    num_tied_kept = np.count_nonzero(tied[token_ids] == lowest)
    assert len(token_ids) == np.count_nonzero(tied > lowest) + num_tied_kept
    assert np.isin(tied_ids[:num_tied_kept], token_ids).all()


def test_top_k_takes_the_lower_ids_of_equal_logits():
    token_ids, _ = kept_tokens(np.array([1, 3, 2, 2, 2, 0], dtype=np.float32), SamplingParams(top_k=3))
    assert token_ids is not None
    assert token_ids.tolist() == [1, 2, 3]


def test_every_draw_falls_on_a_token_that_can_be(sampler):
    logits = np.full(3000, -np.inf, dtype=np.float32)
    logits[[700, 1100, 2900]] = 0.0
    drawn = [sample_one(sampler, logits, row(SamplingParams(), seed=seed)).token_id for seed in range(60)]
    assert set(drawn) == {700, 1100, 2900}


def test_rounding_of_the_logits_does_not_change_the_draw(sampler):
    """The same text alone and in a batch has logits that differ in the last bits."""
    rng = np.random.default_rng(5)
    num_changed = 0
    for seed in range(300):
        logits = (rng.standard_normal(20_000) * 2).astype(np.float32)
        nearly = logits + (rng.standard_normal(20_000) * 1e-5).astype(np.float32)
        params = row(SamplingParams(temperature=1.5), seed=seed)
        num_changed += sample_one(sampler, logits, params).token_id != sample_one(sampler, nearly, params).token_id
    assert num_changed <= 1


def test_a_tiny_temperature_is_greedy_and_a_zero_weight_is_never_drawn(sampler):
    logits = np.array([1.0, 1.0001, 0.0], dtype=np.float32)
    params = SamplingParams(temperature=1e-300)
    assert {sample_one(sampler, logits, row(params, seed=seed)).token_id for seed in range(50)} == {1}


def test_banned_and_disallowed_tokens_never_come_even_with_a_bias(sampler):
    allowed = torch.tensor([True, True, False, True])
    params = SamplingParams(logit_bias={0: 100.0, 2: 100.0})
    for seed in range(50):
        sampled = sampler.sample(torch.zeros(1, 4), [row(params, seed=seed, banned=[0, 99], allowed=allowed)])
        assert sampled[0].token_id in (1, 3)


def test_logprobs_are_those_of_the_unmodified_distribution(sampler):
    logits = np.array([0.0, 1.0, 2.0, 3.0], dtype=np.float32)
    params = SamplingParams(temperature=0.0, logit_bias={0: 100.0}, logprobs=2)
    sampled = sample_one(sampler, logits, row(params))
    expected = torch.log_softmax(torch.from_numpy(logits).double(), 0).tolist()
    assert sampled.token_id == 0
    assert sampled.logprobs is not None
    assert list(sampled.logprobs) == [0, 3, 2]
    assert [entry.rank for entry in sampled.logprobs.values()] == [4, 1, 2]
    for token_id, entry in sampled.logprobs.items():
        assert entry.logprob == pytest.approx(expected[token_id], abs=1e-12)


def test_a_penalty_beyond_fp32_is_an_error_of_its_row(sampler):
    params = SamplingParams(repetition_penalty=0.1)
    logits = torch.tensor([[3e38, 0.0], [1.0, 0.0]])
    failed, fine = sampler.sample(logits, [row(params, prompt=[0])] * 2)
    assert failed.token_id == -1
    assert "repetition_penalty=0.1" in str(failed.error)
    assert fine.error is None


def test_rows_may_lie_anywhere_in_memory(sampler):
    """A slice of a wider tensor, as an inference tensor: the same tokens as from a packed copy."""
    wide = torch.randn(6, 900, generator=torch.Generator().manual_seed(4))
    rows = [row(SamplingParams(top_p=0.9, logprobs=1), seed=idx) for idx in range(6)]
    with torch.inference_mode():
        spread = sampler.sample((wide * 1.0)[:, 100:800], rows)
    assert spread == sampler.sample(wide[:, 100:800].contiguous(), rows)


def test_no_rows_give_no_tokens(sampler):
    assert sampler.sample(torch.zeros(0, 4), []) == []


@given(st.integers(0, 2**63 - 1), st.integers(0, 127), st.integers(0, 2**20))
def test_waiting_times_are_finite_and_not_negative(seed, sample_idx, position):
    waits = waiting_times(seed, sample_idx, position, np.arange(50))
    assert np.isfinite(waits).all()
    assert (waits >= 0).all()


def test_waiting_times_are_exponential_and_unrelated_between_neighbours():
    waits = np.array([[waiting_times(seed, 0, pos, np.arange(20)) for pos in range(20)] for seed in range(50)])
    shares = -np.expm1(-waits)  # uniform, if the times are exponential
    histogram, _ = np.histogram(shares, bins=20, range=(0, 1))
    assert float(((histogram - 1000.0) ** 2 / 1000.0).sum()) < 19 + 3.1 * math.sqrt(38) + 4
    for axis in range(3):
        other = np.roll(shares, 1, axis=axis)
        assert abs(float(np.corrcoef(shares.ravel(), other.ravel())[0, 1])) < 0.03
    assert len(np.unique(shares)) == shares.size


def test_waiting_times_never_change():
    """A seed's samples are a promise to users: a change here changes every seeded output."""
    actual = [*waiting_times(0, 0, 0, np.array([0])), *waiting_times(42, 1, 1000, np.array([7, 49151]))]
    assert [round(float(wait), 12) for wait in actual] == [0.637543007745, 1.279219674249, 2.750904581197]


def test_a_draw_is_the_sample_of_the_rows_that_are_named(sampler):
    """Other rows of the logits are nobody's; one without a token to sample has one for the device all the same."""
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    logits[2, 7] = math.nan
    rows = [row(SamplingParams(temperature=1.0, logprobs=1), seed=5), row(SamplingParams(temperature=0.0))]
    expected = sampler.sample(logits[[3, 2]], rows)
    draw = sampler.begin(logits, rows, (3, 2))
    assert draw.finish() == expected
    assert expected[1].error is not None
    assert draw.token_ids.tolist() == [expected[0].token_id, 0]
    nothing = sampler.begin(logits, [], ())
    assert (nothing.finish(), nothing.token_ids.shape) == ([], (0,))
