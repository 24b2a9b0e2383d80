"""TritonSampler gives what NumpySampler gives: tokens, logprobs and errors, whatever the rows want."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.gpu.sampler import TritonSampler
from ramet.runtime.gpu.upload import upload
from ramet.runtime.outputs import TokenLogprobs
from ramet.runtime.sampler import SamplingRow
from ramet.runtime.sampler_numpy import NumpySampler
from ramet.sampling_params import SamplingParams

CPU = torch.device("cpu")
VOCAB_SIZE = 70

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 5, 1000]),
    top_p=st.sampled_from([0.3111, 0.9113, 1.0]),
    min_p=st.sampled_from([0.0, 0.05]),
    logit_bias=st.sampled_from([None, {3: 4.0, 60: -100.0}]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    logprobs=st.sampled_from([None, 0, 4]),
)
TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=9)


@st.composite
def sampling_rows(draw: st.DrawFn) -> SamplingRow:
    token_ids = draw(TOKENS)
    allowed = None
    kind = draw(st.sampled_from(["all", "all", "flags", "words"]))
    if kind != "all":
        flags = np.random.default_rng(draw(st.integers(0, 9))).random(96) < 0.6
        flags[[1, 2]] = True
        allowed = torch.from_numpy(
            flags[:VOCAB_SIZE] if kind == "flags" else np.packbits(flags, bitorder="little").view(np.int32)
        )
    return SamplingRow(
        params=draw(PARAMS),
        seed=draw(st.sampled_from([0, 7, (1 << 64) - 1])),
        sample_idx=draw(st.integers(0, 3)),
        token_ids=token_ids,
        num_prompt_tokens=draw(st.integers(1, len(token_ids))),
        banned_token_ids=frozenset(draw(st.sampled_from([(), (0, 5), (7, VOCAB_SIZE + 3)]))),
        allowed=allowed,
    )


@pytest.mark.parametrize("seed", [3, 7, 11, 15])
def test_top_p_is_a_share_of_what_top_k_leaves_where_just_so_many_are_gathered(seed: int) -> None:
    logits = torch.randn((1, VOCAB_SIZE), generator=torch.Generator().manual_seed(seed)) * 3
    params = SamplingParams(temperature=2.0, top_k=5, top_p=0.5)
    rows = [SamplingRow(params, row_seed, 0, (1, 2), 1) for row_seed in range(20)]
    logits = logits.expand(len(rows), -1).contiguous()
    results, wanted = TritonSampler(CPU).sample(logits, rows), NumpySampler().sample(logits, rows)
    assert [each.token_id for each in results] == [each.token_id for each in wanted]


@settings(max_examples=25)
@given(st.lists(sampling_rows(), min_size=1, max_size=5), st.integers(0, 99))
def test_rows_get_what_the_definition_gives_them(rows: list[SamplingRow], seed: int) -> None:
    logits = torch.randn((len(rows), VOCAB_SIZE), generator=torch.Generator().manual_seed(seed)) * 3
    untouched = logits.clone()
    results, wanted = TritonSampler(CPU).sample(logits, rows), NumpySampler().sample(logits, rows)
    assert [(each.token_id, each.error) for each in results] == [(each.token_id, each.error) for each in wanted]
    for result, expected in zip(results, wanted, strict=True):
        assert (result.logprobs is None) == (expected.logprobs is None)
        assert_close(result.logprobs or {}, expected.logprobs or {})
    assert torch.equal(logits, untouched)


def assert_close(listing: TokenLogprobs, expected: TokenLogprobs) -> None:
    """The same tokens in the same order with the same ranks; logprobs to the rounding of a sum in fp64."""
    assert [(token_id, entry.rank) for token_id, entry in listing.items()] == [
        (token_id, entry.rank) for token_id, entry in expected.items()
    ]
    assert [entry.logprob for entry in listing.values()] == pytest.approx(
        [entry.logprob for entry in expected.values()], rel=0, abs=1e-12, nan_ok=True
    )


def greedy(**fields: object) -> SamplingRow:
    return SamplingRow(SamplingParams(temperature=0.0), 0, 0, [1, 2], 2, **fields)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:overflow encountered")  # the interpreter is numpy, which warns
def test_rows_that_cannot_be_sampled_say_why_and_leave_the_others_alone() -> None:
    logits = torch.randn(5, 40)
    logits[0, 3], logits[1, 5] = float("nan"), float("inf")
    logits[3, 2] = 3e38
    rows = [
        greedy(),
        greedy(),
        greedy(allowed=torch.zeros(40, dtype=torch.bool)),
        SamplingRow(SamplingParams(temperature=0.0, repetition_penalty=0.5), 0, 0, [2], 1),
        greedy(),
    ]
    results = TritonSampler(CPU).sample(logits, rows)
    assert results == NumpySampler().sample(logits, rows)
    assert [result.error is None for result in results] == [False, False, False, False, True]


def test_logprobs_are_those_of_the_definition() -> None:
    logits = torch.randn(3, 40)
    sampler = TritonSampler(CPU)
    for listing, expected in zip(
        sampler.logprobs(logits, [1, 2, 39], 3), NumpySampler().logprobs(logits, [1, 2, 39], 3), strict=True
    ):
        assert_close(listing, expected)
    named = ([0, 0, 2], [5, 6, 39])
    found = sampler.token_logprobs(logits, *named)
    assert found == pytest.approx(NumpySampler().token_logprobs(logits, *named), rel=0, abs=1e-12)
    assert found[2] == sampler.logprobs(logits[2:], [39], 0)[0][39].logprob


@pytest.mark.parametrize("shapes", [[(0,), (3,)], [(5,), (2, 3), (1,)]])
def test_an_upload_brings_every_array_as_it_was(shapes: list[tuple[int, ...]]) -> None:
    dtypes = [np.int32, np.int64, np.float64]
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 99, shape).astype(dtype) for shape, dtype in zip(shapes, dtypes, strict=False)]
    for tensor, array in zip(upload(arrays, CPU), arrays, strict=True):
        assert tensor.numpy().dtype == array.dtype
        assert np.array_equal(tensor.numpy(), array)


def test_a_draw_is_of_the_rows_as_they_were() -> None:
    """Some rows of the logits, in another order; what the rows name changes before the results are there."""
    logits = torch.randn((5, VOCAB_SIZE), generator=torch.Generator().manual_seed(0)) * 3
    allowed = torch.from_numpy(np.arange(VOCAB_SIZE) % 3 == 0)
    tokens = [4, 5, 6]

    def rows() -> list[SamplingRow]:
        params = SamplingParams(temperature=1.0, top_k=9, logprobs=2)
        penalties = SamplingParams(temperature=0.0, repetition_penalty=1.7)
        return [
            SamplingRow(params, 3, 0, list(tokens), 2, allowed=allowed.clone()),
            SamplingRow(penalties, 4, 1, list(tokens), 1),
        ]

    begun, expected = rows(), NumpySampler().sample(logits[[3, 1]], rows())
    draw = TritonSampler(CPU).begin(logits, begun, (3, 1))
    for row in begun:
        row.token_ids.append(7)  # type: ignore[attr-defined]
        if row.allowed is not None:
            row.allowed.zero_()
    assert draw.token_ids.tolist() == [result.token_id for result in expected]
    results = draw.finish()
    assert results[0].logprobs is not None
    assert expected[0].logprobs is not None
    assert {token_id: entry.rank for token_id, entry in results[0].logprobs.items()} == {
        token_id: entry.rank for token_id, entry in expected[0].logprobs.items()
    }
    for token_id, entry in expected[0].logprobs.items():
        assert results[0].logprobs[token_id].logprob == pytest.approx(entry.logprob, rel=0, abs=1e-12)
    assert results[1] == expected[1]


def test_a_draw_of_no_rows_is_only_waited_for() -> None:
    draw = TritonSampler(CPU).begin(torch.randn(2, VOCAB_SIZE), [], ())
    assert draw.token_ids.shape == (0,)
    assert draw.finish() == []


def test_a_row_that_cannot_be_sampled_has_a_token_for_the_device() -> None:
    logits = torch.full((3, VOCAB_SIZE), float("nan"))
    logits[1] = -float("inf")
    logits[2, 3] = 1.0
    draw = TritonSampler(CPU).begin(logits, [greedy(), greedy(), greedy()], range(3))
    assert all(0 <= token_id < VOCAB_SIZE for token_id in draw.token_ids.tolist())
    assert all(result.error is not None for result in draw.finish())
