"""orca-throughput: what request-level scheduling costs where output lengths differ."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .context import FigureContext
from .cost_model import A100_13B, CostModel
from .figure import Figure, FigureResult
from .lengths import poisson_times, random_prompt
from .simulation import Arrival, Simulation, simulated_request

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Batching = Literal["request-level", "continuous"]
MODES: tuple[Batching, ...] = ("request-level", "continuous")

NUM_SLOTS = 16
PROMPT_LEN = 16
SHORT_LEN, LONG_LEN, SHARE_OF_LONG = 8, 512, 0.2
LATENCY_LIMITS = (3.0, 5.0, 10.0)
"""In lone requests' time per token."""
LOADS = (0.005, 0.01, 0.02, 0.05, 0.2, 0.9)
"""Arrival rates as shares of what continuous batching serves at most."""


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One arrival rate: requests a second, and the mean over the requests of latency per token in seconds."""

    rate_per_s: float
    latency_per_token_s: float


def simulate(batching: Batching, cost_model: CostModel, times_s: Iterable[float], seed: int) -> Simulation:
    """Serve requests of skewed output lengths that arrive at `times_s`."""
    rng = random.Random(seed)
    simulation = Simulation(
        cost_model,
        num_blocks=NUM_SLOTS * (-(-(PROMPT_LEN + LONG_LEN) // 16) + 1),
        max_num_seqs=NUM_SLOTS,
        schedule_policy="fcfs",
        batching=batching,
        reserve="max",
        enable_prefix_caching=False,
    )
    simulation.run(
        Arrival(
            time_s,
            simulated_request(
                f"{idx}",
                random_prompt(PROMPT_LEN, rng),
                LONG_LEN if rng.random() < SHARE_OF_LONG else SHORT_LEN,
            ),
        )
        for idx, time_s in enumerate(times_s)
    )
    return simulation


def load_curve(batching: Batching, rates_per_s: list[float], num_requests: int) -> list[LoadPoint]:
    """Latency under Poisson arrivals at each rate. The first tenth of the requests, of an idle start, is left out."""
    points = []
    for rate_per_s in rates_per_s:
        arrivals = poisson_times(rate_per_s, random.Random(2))
        simulation = simulate(batching, A100_13B, (next(arrivals) for _ in range(num_requests)), seed=3)
        records = list(simulation.records.values())[num_requests // 10 :]
        points.append(LoadPoint(rate_per_s, statistics.fmean(record.latency_per_token_s for record in records)))
    return points


def rate_at(points: list[LoadPoint], alone_s: float, limit_s: float) -> float:
    """The highest rate at which latency per token is still within the limit, by linear interpolation.

    Args:
        points: by ascending rate.
        alone_s: latency per token at rate 0.
    """
    before = LoadPoint(0.0, alone_s)
    for point in points:
        if point.latency_per_token_s > limit_s:
            share = (limit_s - before.latency_per_token_s) / (point.latency_per_token_s - before.latency_per_token_s)
            return before.rate_per_s + share * (point.rate_per_s - before.rate_per_s)
        before = point
    return before.rate_per_s


def run(context: FigureContext) -> FigureResult:
    num_requests = context.pick(full=640, quick=48)
    full_load = {mode: simulate(mode, A100_13B, [0.0] * num_requests, seed=1) for mode in MODES}
    num_steps = {mode: len(simulation.steps) for mode, simulation in full_load.items()}
    max_rate = num_requests / full_load["continuous"].now_s
    loads = context.pick(full=LOADS, quick=(0.02, 0.5))
    curves = {mode: load_curve(mode, [load * max_rate for load in loads], num_requests // 2) for mode in MODES}
    alone_s = A100_13B.step_seconds(0, 1, PROMPT_LEN)
    pairs: dict[str, Mapping[Batching, float]] = {
        "steps, all there at the start": num_steps,
        "virtual seconds, all there at the start": {mode: full_load[mode].now_s for mode in MODES},
    }
    table: list[tuple[str, float, float, float]] = [
        (label, pair["request-level"], pair["continuous"], pair["request-level"] / pair["continuous"])
        for label, pair in pairs.items()
    ]
    for limit in LATENCY_LIMITS:
        slow, fast = (rate_at(curves[mode], alone_s, limit * alone_s) for mode in MODES)
        table.append((f"requests/s within {limit:g}x a lone request's time per token", slow, fast, fast / slow))
    return FigureResult(
        columns=("measure", *MODES, "ratio"),
        rows=table,
        headline=f"{num_steps['request-level'] / num_steps['continuous']:.2f}x fewer steps at full load; "
        + ", ".join(f"{row[3]:.1f}x" for row in table[2:])
        + " the throughput at equal latency",
        paper_value="36.9x the throughput of FasterTransformer at the same latency, GPT-3 175B",
        notes=(
            f"{num_requests} requests of {PROMPT_LEN} prompt tokens; {1 - SHARE_OF_LONG:.0%} generate {SHORT_LEN} "
            f"tokens and {SHARE_OF_LONG:.0%} {LONG_LEN}; {NUM_SLOTS} slots.",
            f"Cost model: {A100_13B.source}.",
            f"Latency per token is the mean over the requests. Rates go up to {LOADS[-1]:.0%} of what continuous "
            "batching serves at most; where it is within the limit there too, the ratio is a lower bound.",
            "36.9x cannot be reproduced: it needs the model, its GPUs and the other system. The ratio depends on how "
            "skewed the lengths are and on the latency asked for. Here the request-level mode even answers a request "
            "as soon as it has ended, and spends no time on ended ones.",
        ),
        plot=lambda axes: draw(axes, curves, alone_s),
    )


def draw(axes: Axes, curves: dict[Batching, list[LoadPoint]], alone_s: float) -> None:
    """Latency over throughput, one line a mode."""
    for mode, points in curves.items():
        axes.plot(
            [point.rate_per_s for point in points],
            [point.latency_per_token_s / alone_s for point in points],
            marker="o",
            label=mode,
        )
    axes.set_yscale("log")
    axes.set_xlabel("requests a second")
    axes.set_ylabel("latency per token (lone request = 1)")
    axes.legend()


FIGURE = Figure(
    name="orca-throughput",
    system="Orca",
    title="Throughput of iteration-level scheduling",
    paper="Orca (OSDI 2022), section 6.2",
    method="scheduler over a cost model",
    run=run,
)
