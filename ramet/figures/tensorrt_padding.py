"""tensorrt-padding: rows computed for nobody because decoding steps are filled up to a captured batch size."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from ..runtime.padding import num_padding_rows
from .context import FigureContext
from .cost_model import A100_13B
from .figure import Cell, Figure, FigureResult
from .lengths import SHAREGPT, poisson_times, random_prompt
from .simulation import Arrival, SimulatedStep, Simulation, simulated_request

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_NUM_SEQS = 256
CAPTURED_SIZES: dict[str, tuple[int, ...]] = {
    "every size": tuple(range(1, MAX_NUM_SEQS + 1)),
    "1, 2, 4, then multiples of 8": (1, 2, 4, *range(8, MAX_NUM_SEQS + 1, 8)),
    "1, 2, 4, 8, then multiples of 16": (1, 2, 4, 8, *range(16, MAX_NUM_SEQS + 1, 16)),
    "powers of two": tuple(1 << exponent for exponent in range(MAX_NUM_SEQS.bit_length())),
    "256 only": (MAX_NUM_SEQS,),
}
LOADS = (1.0, 2.0, 3.0)
"""Arrivals a second."""


def trace(rate_per_s: float, num_requests: int) -> list[SimulatedStep]:
    """The steps in which requests of a chat's lengths are served that arrive at random."""
    rng = random.Random(0)
    simulation = Simulation(A100_13B, num_blocks=20_000, max_num_seqs=MAX_NUM_SEQS, schedule_policy="fcfs")
    times = poisson_times(rate_per_s, random.Random(1))
    arrivals = []
    for idx, time_s in enumerate(itertools.islice(times, num_requests)):
        prompt_len, output_len = SHAREGPT.sample(rng)
        arrivals.append(Arrival(time_s, simulated_request(f"{idx}", random_prompt(prompt_len, rng), output_len)))
    simulation.run(arrivals)
    return simulation.steps


def padding_share(steps: list[SimulatedStep], sizes: tuple[int, ...]) -> float:
    """Rows of padding as a share of all rows of the steps that only decode."""
    decoding = [len(step.parts) for step in steps if step.num_tokens == len(step.parts)]
    padding = sum(num_padding_rows(num_seqs, num_seqs, sizes) for num_seqs in decoding)
    return padding / (sum(decoding) + padding)


def run(context: FigureContext) -> FigureResult:
    num_requests = context.pick(full=240, quick=24)
    traces = {rate: trace(rate, num_requests) for rate in context.pick(full=LOADS, quick=LOADS[:1])}
    shares = {
        label: [padding_share(steps, sizes) for steps in traces.values()] for label, sizes in CAPTURED_SIZES.items()
    }
    rows: list[list[Cell]] = [
        [label, len(CAPTURED_SIZES[label]), *(f"{share:.1%}" for share in row)] for label, row in shares.items()
    ]
    sparse, powers = shares["1, 2, 4, then multiples of 8"], shares["powers of two"]
    mean_size = {rate: sum(len(step.parts) for step in steps) / len(steps) for rate, steps in traces.items()}
    return FigureResult(
        columns=("captured sizes", "graphs", *(f"padding, {rate:g}/s" for rate in traces)),
        rows=rows,
        headline=f"{min(sparse):.1%} to {max(sparse):.1%} of the decoding rows are padding with a size every 8, "
        f"{min(powers):.1%} to {max(powers):.1%} with powers of two",
        paper_value="up to 22 % end to end from captured graphs and padding to the next captured size; no share given",
        notes=(
            "Steps that only decode, as ramet's scheduler made them for chat lengths and Poisson arrivals; rows by the "
            "function that pads batches in the product. A row of padding costs far less than a launch where "
            "weights are streamed once a step. Mean sequences a step: "
            + ", ".join(f"{size:.0f} at {rate:g}/s" for rate, size in mean_size.items())
            + ".",
            f"Cost model: {A100_13B.source}.",
        ),
        plot=lambda axes: draw(axes, shares),
    )


def draw(axes: Axes, shares: dict[str, list[float]]) -> None:
    """One bar a list of sizes, the mean over the loads."""
    axes.barh(list(shares), [100 * sum(row) / len(row) for row in shares.values()])
    axes.invert_yaxis()
    axes.set_xlabel("% of decoding rows that are padding")


FIGURE = Figure(
    name="tensorrt-padding",
    system="TensorRT-LLM",
    title="Padding to captured batch sizes",
    paper="TensorRT-LLM documentation, CUDA graphs and padding",
    method="scheduler over a cost model",
    run=run,
)
