"""tensorrt-capacity: how much of the pool an admission policy dares to promise, and what that costs or gains."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal

from .context import FigureContext
from .cost_model import A100_13B
from .figure import Figure, FigureResult
from .lengths import SHAREGPT, random_prompt
from .simulation import Arrival, Simulation, simulated_request

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Reserve = Literal["max", "estimate", "none"]

NUM_BLOCKS = 512
ALLOWED_LEN = 1024
"""max_tokens of every request; it ends long before, at a token that the requests do not know of."""
POLICIES: dict[str, tuple[Reserve, float]] = {
    "reserve=max (guaranteed no evict)": ("max", 1.0),
    "reserve=estimate, conservativeness 1.0": ("estimate", 1.0),
    "reserve=estimate, conservativeness 0.6": ("estimate", 0.6),
    "reserve=estimate, conservativeness 0.3": ("estimate", 0.3),
    "reserve=estimate, conservativeness 0.1": ("estimate", 0.1),
    "reserve=none (max utilisation)": ("none", 1.0),
}


def serve(reserve: Reserve, conservativeness: float, num_requests: int) -> Simulation:
    """Serve requests of chat lengths, all there at the start, with a pool for some 20 of them."""
    rng = random.Random(0)
    simulation = Simulation(
        A100_13B,
        num_blocks=NUM_BLOCKS,
        schedule_policy="fcfs",
        reserve=reserve,
        schedule_conservativeness=conservativeness,
        enable_prefix_caching=False,
    )
    arrivals = []
    for idx in range(num_requests):
        prompt_len, output_len = SHAREGPT.sample(rng)
        request = simulated_request(
            f"{idx}", random_prompt(prompt_len, rng), min(output_len, ALLOWED_LEN), allowed_len=ALLOWED_LEN
        )
        arrivals.append(Arrival(0.0, request))
    simulation.run(arrivals)
    return simulation


def run(context: FigureContext) -> FigureResult:
    num_requests = context.pick(full=150, quick=60)
    labels = context.pick(full=tuple(POLICIES), quick=tuple(POLICIES)[::5])
    runs = {label: serve(*POLICIES[label], num_requests) for label in labels}
    throughput = {
        label: simulation.engine.metrics.num_generated_tokens / simulation.now_s for label, simulation in runs.items()
    }
    preemptions = {label: simulation.engine.metrics.num_preemptions for label, simulation in runs.items()}
    rows = tuple(
        (
            label,
            f"{throughput[label]:.0f}",
            preemptions[label],
            f"{sum(len(step.parts) for step in simulation.steps) / len(simulation.steps):.1f}",
            f"{simulation.engine.metrics.num_computed_tokens:,}",
        )
        for label, simulation in runs.items()
    )
    first, last = labels[0], labels[-1]
    return FigureResult(
        columns=("policy", "tokens/s", "preemptions", "mean batch", "computed tokens"),
        rows=rows,
        headline=f"{throughput[last] / throughput[first]:.2f}x the throughput and {preemptions[last]} preemptions "
        f"where nothing is reserved; {preemptions[first]} preemptions where all is",
        paper_value="max utilisation runs more requests at once and may pause some; guaranteed no evict (the default) "
        "never does",
        notes=(
            f"{num_requests} requests of chat lengths, max_tokens={ALLOWED_LEN}, a pool of {NUM_BLOCKS} blocks of 16. "
            "A preempted request computes its context again.",
            f"Cost model: {A100_13B.source}.",
        ),
        plot=lambda axes: draw(axes, throughput, preemptions),
    )


def draw(axes: Axes, throughput: dict[str, float], preemptions: dict[str, int]) -> None:
    """Throughput over preemptions, one point a policy."""
    for label, tokens_per_s in throughput.items():
        axes.plot([preemptions[label]], [tokens_per_s], marker="o", linestyle="none", label=label)
    axes.set_xlabel("preemptions")
    axes.set_ylabel("generated tokens a second")
    axes.legend(fontsize="small")


FIGURE = Figure(
    name="tensorrt-capacity",
    system="TensorRT-LLM",
    title="Capacity policies",
    paper="TensorRT-LLM documentation, capacity scheduler policies; SGLang's schedule conservativeness",
    method="scheduler over a cost model",
    run=run,
)
