"""What the Sarathi-Serve figures rest on: stalls with whole prompts, none with chunks, and a search that finds."""

from __future__ import annotations

import random
import statistics

import pytest

from ramet.figures.chunked_prefill import (
    A100_MISTRAL_7B,
    PREFILL_FIRST,
    PercentileLengths,
    arrivals,
    chunked,
    median_queueing_s,
    percentile,
    serve,
    times_between_tokens,
)
from ramet.figures.sarathi_capacity import NUM_RATES, LoadTest, Setting

SETTING = Setting("test", A100_MISTRAL_7B, 8)


def test_lengths_have_the_percentiles_they_are_given() -> None:
    rng = random.Random(0)
    lengths = [PercentileLengths(400, 1000).sample(rng) for _ in range(20_000)]

    assert statistics.median(lengths) == pytest.approx(400, rel=0.05)
    assert percentile(lengths, 90) == pytest.approx(1000, rel=0.05)


def test_a_rate_changes_only_the_times() -> None:
    slow, fast = (list(arrivals(10, rate, seed=1, shrink=8)) for rate in (1.0, 2.0))

    assert [arrival.request.prompt_token_ids for arrival in slow] == [
        arrival.request.prompt_token_ids for arrival in fast
    ]
    assert [arrival.time_s for arrival in slow] == pytest.approx([2 * arrival.time_s for arrival in fast])


def test_chunks_never_pause_a_decode_and_whole_prompts_do() -> None:
    by_chunks = serve(chunked(64), A100_MISTRAL_7B, arrivals(16, 20.0, seed=2, shrink=8))
    by_prompts = serve(PREFILL_FIRST, A100_MISTRAL_7B, arrivals(16, 20.0, seed=2, shrink=8))

    longest_step_s = max(step.end_s - step.start_s for step in by_chunks.steps)
    assert max(times_between_tokens(by_chunks.records.values())) == pytest.approx(longest_step_s)
    assert all(step.num_tokens <= 64 for step in by_chunks.steps)
    longest_step_s = max(step.end_s - step.start_s for step in by_prompts.steps)
    assert max(times_between_tokens(by_prompts.records.values())) > 1.5 * longest_step_s
    assert all(step.num_decodes in (0, len(step.parts)) for step in by_prompts.steps)


def test_an_overload_shows_in_the_queue() -> None:
    waits = [
        median_queueing_s(serve(chunked(64), A100_MISTRAL_7B, arrivals(200, rate, seed=2, shrink=8)))
        for rate in (0.1, 1000.0)
    ]

    assert waits[0] < 0.1 < waits[1]


@pytest.mark.parametrize("last_good", [-1, 0, 5, NUM_RATES - 1])
def test_bisection_finds_the_last_rate_within_the_limit(last_good: int, monkeypatch: pytest.MonkeyPatch) -> None:
    test = LoadTest(PREFILL_FIRST, SETTING, num_requests=1)
    step_s = SETTING.reference_step_s
    monkeypatch.setattr(test, "measure", lambda rate_idx: (step_s if rate_idx <= last_good else 9 * step_s, 0.0))

    assert test.capacity(5.0) == (test.rate(last_good) if last_good >= 0 else 0.0)


def test_a_queue_that_grows_is_no_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    test = LoadTest(PREFILL_FIRST, SETTING, num_requests=1)
    monkeypatch.setattr(test, "measure", lambda rate_idx: (0.0, 1e9))

    assert test.capacity(5.0) == 0.0
