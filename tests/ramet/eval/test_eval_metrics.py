"""Means, perplexities and their intervals."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.eval import ItemResult, Task
from ramet.eval.metrics import bootstrapped, compute_metrics, mean_metric, wilson_interval
from ramet.eval.question import Question


@pytest.mark.parametrize(
    ("num_right", "num_items", "low", "high"),
    [
        # Newcombe 1998, table I: the score interval without continuity correction
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_wilson_intervals_are_the_published_ones(num_right: int, num_items: int, low: float, high: float) -> None:
    assert wilson_interval(num_right, num_items) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_wilson_interval_holds_its_rate(pair: tuple[int, int]) -> None:
    num_right, num_items = pair
    low, high = wilson_interval(num_right, num_items)
    assert 0.0 <= low <= num_right / num_items <= high <= 1.0


def test_rates_get_wilson_and_others_the_bootstrap() -> None:
    rate = mean_metric("acc", [1.0, 0.0, 1.0, 1.0])
    assert (rate.value, rate.interval, rate.num_items) == (0.75, "wilson", 4)
    assert rate.stderr == pytest.approx(statistics.stdev([1, 0, 1, 1]) / 2)
    other = mean_metric("f1", [0.5, 0.0, 1.0, 1.0])
    assert (other.value, other.interval) == (0.625, "bootstrap")
    assert other.low < 0.625 < other.high
    assert mean_metric("acc", [1.0]).stderr is None


def test_the_bootstrap_agrees_with_the_normal_error_and_repeats() -> None:
    values = [math.sin(idx) for idx in range(400)]
    metric = bootstrapped("m", values, statistics.fmean)
    assert metric.stderr == pytest.approx(statistics.stdev(values) / 20, rel=0.1)
    assert metric.high - metric.low == pytest.approx(2 * 1.96 * statistics.stdev(values) / 20, rel=0.1)
    assert bootstrapped("m", values, statistics.fmean) == metric


def perplexity_items(*texts: tuple[float, str, int]) -> list[ItemResult]:
    return [
        ItemResult(
            Question(idx, {}, (("", text),)),
            "k",
            scores={
                "logprob": logprob,
                "num_words": float(len(text.split())),
                "num_bytes": float(len(text.encode())),
                "num_tokens": float(num_tokens),
            },
        )
        for idx, (logprob, text, num_tokens) in enumerate(texts)
    ]


def test_perplexities_are_over_all_texts_together() -> None:
    task = Task(name="t", kind="perplexity", items=[{}], prompt="{text}")
    metrics = compute_metrics(task, perplexity_items((-6.0, "one two", 2), (-2.0, "é x", 2)))
    assert metrics["word_perplexity"].value == pytest.approx(math.exp(8 / 4))
    assert metrics["token_perplexity"].value == pytest.approx(math.exp(8 / 4))
    assert metrics["byte_perplexity"].value == pytest.approx(math.exp(8 / 11))
    assert metrics["bits_per_byte"].value == pytest.approx(8 / 11 / math.log(2))
    assert set(metrics) == {"word_perplexity", "token_perplexity", "byte_perplexity", "bits_per_byte"}


def test_impossible_texts_have_infinite_perplexity_and_say_so_in_json() -> None:
    task = Task(name="t", kind="perplexity", items=[{}], prompt="{text}")
    metric = compute_metrics(task, perplexity_items((-math.inf, "one two", 2)))["word_perplexity"]
    assert metric.value == math.inf
    assert metric.to_json()["value"] is None
    assert metric.stderr is None


def test_failed_items_are_in_no_metric() -> None:
    task = Task(name="t", kind="generate", items=[{}], prompt="{q}", target="x")
    question = Question(0, {}, (("", "q"),))
    good = ItemResult(question, "k", scores={"exact_match": 1.0})
    bad = ItemResult(question, "k", error="too long")
    assert compute_metrics(task, [good, bad])["exact_match"].num_items == 1
    assert compute_metrics(task, [bad]) == {}
