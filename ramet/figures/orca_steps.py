"""orca-steps: four requests in three slots, scheduled request by request and iteration by iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .context import FigureContext
from .cost_model import UNIT_STEPS
from .figure import Figure, FigureResult
from .simulation import Arrival, SimulatedStep, Simulation, simulated_request

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Batching = Literal["request-level", "continuous"]

OUTPUT_LENS = {"A": 6, "B": 4, "C": 8, "D": 3}
NUM_SLOTS = 3


def steps_of(batching: Batching, output_lens: dict[str, int], num_slots: int) -> list[SimulatedStep]:
    """The steps in which the engine serves requests that are all there at the start, in order of arrival."""
    simulation = Simulation(
        UNIT_STEPS, num_blocks=64, max_num_seqs=num_slots, schedule_policy="fcfs", batching=batching
    )
    simulation.run(
        Arrival(0.0, simulated_request(name, [idx], output_len))
        for idx, (name, output_len) in enumerate(output_lens.items())
    )
    return simulation.steps


def run(context: FigureContext) -> FigureResult:
    """Nothing to scale down: it is nineteen steps."""
    traces: dict[Batching, list[SimulatedStep]] = {
        "request-level": steps_of("request-level", OUTPUT_LENS, NUM_SLOTS),
        "continuous": steps_of("continuous", OUTPUT_LENS, NUM_SLOTS),
    }
    rows = tuple(
        (batching, len(steps), f"{sum(len(step.parts) for step in steps) / (len(steps) * NUM_SLOTS):.0%}", *ends(steps))
        for batching, steps in traces.items()
    )
    return FigureResult(
        columns=("scheduling", "steps", "slots in use", *(f"{name} ends in step" for name in OUTPUT_LENS)),
        rows=rows,
        headline=f"{len(traces['request-level'])} steps request by request, {len(traces['continuous'])} continuously",
        paper_value="11 steps become 8 in the usual illustration with four requests and three slots",
        notes=(f"Output lengths {OUTPUT_LENS}, {NUM_SLOTS} slots, one token a request and step.",),
        plot=lambda axes: draw(axes, traces),
    )


def ends(steps: list[SimulatedStep]) -> list[int]:
    """The number of the step in which each request ends, counted from 1."""
    last: dict[str, int] = {}
    for number, step in enumerate(steps, start=1):
        last |= dict.fromkeys((part.request_id for part in step.parts), number)
    return [last[name] for name in OUTPUT_LENS]


def draw(axes: Axes, traces: dict[Batching, list[SimulatedStep]]) -> None:
    """One row a request and mode, one cell a step in which it computes a token."""
    labels: list[str] = []
    for mode_idx, (batching, steps) in enumerate(traces.items()):
        for name in OUTPUT_LENS:
            spans = [
                (number, 0.9)
                for number, step in enumerate(steps)
                if any(part.request_id == name for part in step.parts)
            ]
            axes.broken_barh(spans, (len(labels) - 0.4, 0.8), facecolors=f"C{mode_idx}")
            labels.append(f"{name}, {batching}")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("step")


FIGURE = Figure(
    name="orca-steps",
    system="Orca",
    title="Iteration-level scheduling",
    paper="Orca (OSDI 2022), section 3.1 and figures 3 and 4",
    method="scheduler over a cost model",
    run=run,
)
