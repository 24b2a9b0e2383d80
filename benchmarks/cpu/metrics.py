"""The rows of the main table: which figure of a workload, in which unit, and what we want of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """Attributes:
    title: of the row.
    workload: whose outcomes it reads.
    value: of one outcome, given the sizes of W1; None if the clock did not move enough to tell.
    unit: behind every figure.
    target: the ratio to the best peer that we want; None if there is none.
    is_rate: more is better.
    """

    title: str
    workload: str
    value: Callable[[Mapping[str, Any], Mapping[str, int]], float | None]
    unit: str
    target: float | None
    is_rate: bool


def _prefill(outcome: Mapping[str, Any], sizes: Mapping[str, int]) -> float:
    return sizes["prompt"] / outcome["prefill_seconds"]


def _decode(outcome: Mapping[str, Any], sizes: Mapping[str, int]) -> float | None:
    """The first token comes with the prompt; the others take what a run for that one alone does not."""
    seconds = outcome["seconds"] - outcome["prefill_seconds"]
    return (sizes["generated"] - 1) / seconds if seconds > 0 else None


def _seconds(outcome: Mapping[str, Any], sizes: Mapping[str, int]) -> float:
    return float(outcome["seconds"])


METRICS = (
    Metric("W1 prefill", "W1", _prefill, "tok/s", 2.0, is_rate=True),
    Metric("W1 decode", "W1", _decode, "tok/s", 2.0, is_rate=True),
    Metric("W2", "W2", _seconds, "s", 2.5, is_rate=False),
    Metric("W3", "W3", _seconds, "s", 2.5, is_rate=False),
    Metric("W3 unprimed", "W3-together", _seconds, "s", None, is_rate=False),
    Metric("W3-select", "W3-select", _seconds, "s", 2.5, is_rate=False),
    Metric("W4", "W4", _seconds, "s", 2.5, is_rate=False),
    Metric("W5", "W5", _seconds, "s", 2.5, is_rate=False),
)


@dataclass(frozen=True)
class Figure:
    """Best and median of the rounds."""

    best: float
    median: float


def figure_of(metric: Metric, runs: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]) -> Figure | str | None:
    """What an engine reached; why it did not; or None if it was not asked.

    Args:
        runs: the results of `engine_job.run`, one a round.
    """
    values: list[float] = []
    reason: str | None = None
    for run in runs:
        outcome = run["workloads"].get(metric.workload)
        if outcome is not None and "same_as" in outcome:
            outcome = run["workloads"].get(outcome["same_as"])
        if outcome is None:
            continue
        if "error" in outcome:
            reason = outcome["error"]
            continue
        value = metric.value(outcome, sizes)
        if value is not None:
            values.append(value)
    if values:
        return Figure(max(values) if metric.is_rate else min(values), statistics.median(values))
    return reason


def gain(metric: Metric, own: float, other: float) -> float:
    """How many times better `own` is than `other`."""
    return own / other if metric.is_rate else other / own
