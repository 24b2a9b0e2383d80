"""Metrics over items, each with a standard error and a 95 % interval.

Where every score is 0 or 1 the interval is Wilson's, which stays inside [0, 1] and is right for few items and for rates
near its ends. Others are bootstrapped: items are drawn with replacement, with a fixed seed, so that equal results have
equal intervals.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

from .results import ItemResult, Metric
from .task import Task

T = TypeVar("T")

NUM_RESAMPLES = 1000
_Z95 = statistics.NormalDist().inv_cdf(0.975)

PERPLEXITY_UNITS = {"word_perplexity": "num_words", "byte_perplexity": "num_bytes", "token_perplexity": "num_tokens"}
_PERPLEXITY_PARTS = ("logprob", *PERPLEXITY_UNITS.values())


def compute_metrics(task: Task, items: Sequence[ItemResult]) -> dict[str, Metric]:
    """The metrics of a task over the items that have scores, by name; none without such items."""
    scored = [item.scores for item in items if item.error is None]
    if not scored:
        return {}
    metrics: dict[str, Metric] = {}
    if task.kind == "perplexity":
        pairs = {name: [(each["logprob"], each[unit]) for each in scored] for name, unit in PERPLEXITY_UNITS.items()}
        metrics = {name: bootstrapped(name, values, _perplexity) for name, values in pairs.items()}
        metrics["bits_per_byte"] = bootstrapped("bits_per_byte", pairs["byte_perplexity"], _bits)
    for name in scored[0]:
        if task.kind != "perplexity" or name not in _PERPLEXITY_PARTS:
            metrics[name] = mean_metric(name, [each[name] for each in scored])
    return metrics


def mean_metric(name: str, scores: Sequence[float]) -> Metric:
    """The mean of some scores, at least one."""
    if not set(scores) <= {0.0, 1.0}:
        return bootstrapped(name, scores, statistics.fmean)
    num_items, num_right = len(scores), sum(scores)
    low, high = wilson_interval(int(num_right), num_items)
    stderr = statistics.stdev(scores) / math.sqrt(num_items) if num_items > 1 else None
    return Metric(name, num_right / num_items, stderr, low, high, "wilson", num_items)


def wilson_interval(num_right: int, num_items: int) -> tuple[float, float]:
    """The 95 % interval of a rate by Wilson's score method."""
    rate, z2 = num_right / num_items, _Z95**2
    centre = (rate + z2 / (2 * num_items)) / (1 + z2 / num_items)
    half = _Z95 * math.sqrt(rate * (1 - rate) / num_items + z2 / (4 * num_items**2)) / (1 + z2 / num_items)
    low = 0.0 if num_right == 0 else max(0.0, centre - half)
    high = 1.0 if num_right == num_items else min(1.0, centre + half)
    return low, high


def bootstrapped(name: str, values: Sequence[T], statistic: Callable[[Sequence[T]], float]) -> Metric:
    """A statistic of some values, at least one, with the spread it has over resamples of them."""
    generator = random.Random(0)
    drawn = sorted(statistic(generator.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES))
    low, high = drawn[round(0.025 * (NUM_RESAMPLES - 1))], drawn[round(0.975 * (NUM_RESAMPLES - 1))]
    finite = [value for value in drawn if math.isfinite(value)]
    stderr = statistics.stdev(finite) if len(values) > 1 and len(finite) == len(drawn) else None
    return Metric(name, statistic(values), stderr, low, high, "bootstrap", len(values))


def _perplexity(pairs: Sequence[tuple[float, float]]) -> float:
    """exp of the mean negative log-probability per unit."""
    try:
        return math.exp(_negative_per_unit(pairs))
    except OverflowError:
        return math.inf


def _bits(pairs: Sequence[tuple[float, float]]) -> float:
    return _negative_per_unit(pairs) / math.log(2)


def _negative_per_unit(pairs: Sequence[tuple[float, float]]) -> float:
    num_units = sum(count for _, count in pairs)
    return -sum(logprob for logprob, _ in pairs) / num_units if num_units else 0.0
