"""sarathi-chunk-size: small steps keep the time between tokens short, large steps finish the work sooner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .chunked_prefill import (
    A100_MISTRAL_7B,
    PREFILL_FIRST,
    Schedule,
    arrivals,
    chunked,
    percentile,
    serve,
    times_between_tokens,
)
from .context import FigureContext
from .figure import Cell, Figure, FigureResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = (128, 256, 512, 1024, 2048, 4096)
RATE_PER_S = 4.0
"""More than can be served, so that the makespan says how fast the work can be done."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: percentiles of the time between tokens, and the end of the last request, in virtual seconds."""

    schedule: Schedule
    median_s: float
    p99_s: float
    max_s: float
    makespan_s: float
    num_tokens: int


def measure(schedule: Schedule, num_requests: int) -> Outcome:
    """Serve the paper's chat workload."""
    simulation = serve(schedule, A100_MISTRAL_7B, arrivals(num_requests, RATE_PER_S, seed=5))
    gaps = times_between_tokens(simulation.records.values())
    num_tokens = simulation.engine.metrics.num_computed_tokens
    return Outcome(
        schedule, percentile(gaps, 50), percentile(gaps, 99), max(gaps, default=0.0), simulation.now_s, num_tokens
    )


def run(context: FigureContext) -> FigureResult:
    num_requests = context.pick(full=96, quick=6)
    outcomes = [measure(schedule, num_requests) for schedule in (PREFILL_FIRST, *map(chunked, SIZES))]
    first, small, large = outcomes[0], outcomes[1], outcomes[-1]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            outcome.schedule.name,
            *(round(1e3 * value, 1) for value in (outcome.median_s, outcome.p99_s, outcome.max_s)),
            round(outcome.makespan_s, 1),
            round(outcome.num_tokens / outcome.makespan_s),
        )
        for outcome in outcomes
    )
    return FigureResult(
        columns=("schedule", "TBT median ms", "TBT p99 ms", "TBT max ms", "makespan s", "tokens/s"),
        rows=rows,
        headline=f"{SIZES[0]} tokens a step: p99 TBT {1e3 * small.p99_s:.0f} ms and {small.makespan_s:.0f} s in all; "
        f"{SIZES[-1]}: {1e3 * large.p99_s:.0f} ms and {large.makespan_s:.0f} s; "
        f"prefill-first: max TBT {first.max_s:.1f} s",
        paper_value="small chunks lower the time between tokens and cost prefill efficiency: 512 tokens under strict "
        "limits, 2,048 under relaxed ones",
        notes=(
            f"{num_requests} requests of the paper's chat lengths; {RATE_PER_S:g} a second, more than can be served.",
            f"A simulation. Cost model: {A100_MISTRAL_7B.source}.",
        ),
        plot=lambda axes: draw(axes, outcomes),
    )


def draw(axes: Axes, outcomes: list[Outcome]) -> None:
    """Throughput over the 99th percentile of the time between tokens, a point a schedule."""
    for outcome in outcomes:
        axes.scatter(outcome.p99_s, outcome.num_tokens / outcome.makespan_s, label=outcome.schedule.name)
    axes.set_xlabel("p99 time between tokens, s")
    axes.set_ylabel("tokens a second")
    axes.legend(fontsize="small")


FIGURE = Figure(
    name="sarathi-chunk-size",
    system="Sarathi-Serve",
    title="Tokens in a step: latency against throughput",
    paper="Sarathi-Serve (OSDI 2024), section 4.3 and table 3",
    method="scheduler over a cost model",
    run=run,
)
