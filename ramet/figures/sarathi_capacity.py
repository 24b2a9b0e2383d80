"""sarathi-capacity: how many requests a second can be served while the time between tokens stays under a limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .chunked_prefill import (
    A100_MISTRAL_7B,
    PREFILL_FIRST,
    Schedule,
    arrivals,
    chunked,
    median_queueing_s,
    percentile,
    serve,
    times_between_tokens,
)
from .context import FigureContext
from .cost_model import CostModel
from .figure import Cell, Figure, FigureResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MAX_QUEUEING_STEPS = 80
"""For the median time in the queue, in reference steps: the paper's 2 s, for the A100's 25 ms a step."""
REQUEST_LENS = (2400, 450)
"""Mean tokens of a prompt and of an output, roughly: says where the search begins."""
RATE_RATIO = 1.15
"""Rates are tried in steps of this ratio; a capacity is exact to one step."""
NUM_RATES = 16


@dataclass(frozen=True, slots=True)
class Limit:
    """How long the time between tokens may be, and the size of a step that the paper takes for that (table 3).

    Attributes:
        num_steps: for its 99th percentile, in reference steps.
    """

    name: str
    num_steps: float
    num_tokens: int


LIMITS = (Limit("strict", 5.0, 512), Limit("relaxed", 25.0, 2048))


@dataclass(frozen=True, slots=True)
class Setting:
    """A model on a machine, and lengths that suit it.

    Attributes:
        shrink: divides the paper's lengths.
    """

    name: str
    cost_model: CostModel
    shrink: int

    @property
    def reference_step_s(self) -> float:
        """A decoding step of 32 sequences at 4,096 tokens each, divided by `shrink`."""
        return self.cost_model.step_seconds(0, 32, 32 * 4096 // self.shrink)


class LoadTest:
    """One schedule in a setting: p99 time between tokens and median queueing, at rates on a geometric grid."""

    def __init__(self, schedule: Schedule, setting: Setting, num_requests: int) -> None:
        self._schedule = schedule
        self._setting = setting
        self._num_requests = num_requests
        num_prompt_tokens, num_output_tokens = (length // setting.shrink for length in REQUEST_LENS)
        # A tenth of what the arithmetic alone allows.
        self._lowest = 0.1 / setting.cost_model.step_seconds(num_prompt_tokens, num_output_tokens, 0)
        self._measured: dict[int, tuple[float, float]] = {}

    def rate(self, rate_idx: int) -> float:
        """Requests a second."""
        return float(self._lowest * RATE_RATIO**rate_idx)

    def measure(self, rate_idx: int) -> tuple[float, float]:
        """p99 time between tokens and median queueing in seconds; run once for all limits."""
        if rate_idx not in self._measured:
            requests = arrivals(self._num_requests, self.rate(rate_idx), seed=11, shrink=self._setting.shrink)
            simulation = serve(self._schedule, self._setting.cost_model, requests)
            gaps_s = times_between_tokens(simulation.records.values())
            self._measured[rate_idx] = percentile(gaps_s, 99), median_queueing_s(simulation)
        return self._measured[rate_idx]

    def capacity(self, num_steps: float) -> float:
        """The highest rate on the grid within a limit of so many reference steps, by bisection; 0 if there is none."""
        step_s = self._setting.reference_step_s
        low, high = -1, NUM_RATES
        while high - low > 1:
            middle = (low + high) // 2
            gap_s, queueing_s = self.measure(middle)
            if gap_s <= num_steps * step_s and queueing_s <= MAX_QUEUEING_STEPS * step_s:
                low = middle
            else:
                high = middle
        return self.rate(low) if low >= 0 else 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests a second under a limit."""

    setting: Setting
    limit: Limit
    prefill_first: float
    chunked: float

    @property
    def gain(self) -> float:
        return self.chunked / self.prefill_first if self.prefill_first else float("inf")

    @property
    def row(self) -> tuple[Cell, ...]:
        limit_ms = round(1e3 * self.limit.num_steps * self.setting.reference_step_s)
        rates = f"{self.prefill_first:.3g}", f"{self.chunked:.3g}"
        return self.setting.name, self.limit.name, limit_ms, self.limit.num_tokens, *rates, f"{self.gain:.2f}x"


def measure(setting: Setting, num_requests: int) -> list[Capacity]:
    """The capacities under each limit."""
    first = LoadTest(PREFILL_FIRST, setting, num_requests)
    found = []
    for limit in LIMITS:
        test = LoadTest(chunked(limit.num_tokens), setting, num_requests)
        found.append(Capacity(setting, limit, first.capacity(limit.num_steps), test.capacity(limit.num_steps)))
    return found


def run(context: FigureContext) -> FigureResult:
    num_requests = context.pick(full=160, quick=8)
    a100 = Setting("A100, Mistral-7B", A100_MISTRAL_7B, 1)
    here = Setting("this machine, SmolLM2-135M", context.cost_model, 8)
    on_a100, on_this = measure(a100, num_requests), measure(here, num_requests)
    return FigureResult(
        columns=("model", "limit", "p99 TBT ms", "tokens a step", "prefill-first/s", "chunked/s", "ratio"),
        rows=tuple(capacity.row for capacity in on_a100 + on_this),
        headline=" and ".join(f"{capacity.gain:.1f}x ({capacity.limit.name} limit)" for capacity in on_a100)
        + " the requests a second of prefill-first scheduling, on an A100's cost model",
        paper_value="2.6x (Mistral-7B, one A100), up to 5.6x (Falcon-180B over pipeline stages)",
        notes=(
            "A simulation: requests a second that the product's scheduler serves over a cost model. "
            f"A100: {a100.cost_model.source}. This machine: {context.cost_model.source}; all lengths are "
            f"divided by {here.shrink} there.",
            f"{num_requests} requests of the paper's chat lengths (openchat_sharegpt4) arrive as a Poisson process; "
            f"rates are tried in steps of {RATE_RATIO - 1:.0%}.",
            "Limits: 5 and 25 times a decoding step of 32 sequences at 4,096 tokens for the 99th percentile of the "
            f"time between tokens, and {MAX_QUEUEING_STEPS} such steps for the median time in the queue.",
            "The baseline is prefill-first scheduling, which the paper's vLLM had. Pipeline stages, which give the "
            "paper its 5.6x, are not simulated.",
        ),
        plot=lambda axes: draw(axes, on_a100 + on_this),
    )


def draw(axes: Axes, capacities: Sequence[Capacity]) -> None:
    """Capacity over that of prefill-first, a bar a model and limit."""
    labels = [f"{capacity.setting.name}\n{capacity.limit.name}" for capacity in capacities]
    axes.bar(labels, [capacity.gain if math.isfinite(capacity.gain) else 0.0 for capacity in capacities])
    axes.axhline(1.0, color="black", linestyle="dashed")
    axes.tick_params(axis="x", labelsize="x-small")
    axes.set_ylabel("capacity, chunked over prefill-first")


FIGURE = Figure(
    name="sarathi-capacity",
    system="Sarathi-Serve",
    title="Serving capacity under a limit on the time between tokens",
    paper="Sarathi-Serve (OSDI 2024), sections 5.1 and 5.2",
    method="scheduler over a cost model",
    run=run,
)
