"""tensorrt-phases: where the time of a step goes, by the five phases of the engine's loop."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ..runtime.llm import LLM
from ..runtime.metrics import PHASES
from ..sampling_params import SamplingParams
from .context import FigureContext
from .figure import Cell, Figure, FigureResult
from .lengths import random_prompt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BATCH_SIZES = (1, 8, 32)
PROMPT_LEN = 64


def phase_ms(llm: LLM, batch_size: int, output_len: int) -> dict[str, float]:
    """Milliseconds a step in each phase, over a run of `batch_size` requests from their prompts to their ends."""
    rng = random.Random(batch_size)
    llm.reset_prefix_cache()
    before = llm.metrics()
    llm.generate(
        [{"prompt_token_ids": random_prompt(PROMPT_LEN, rng)} for _ in range(batch_size)],
        SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=output_len, ignore_eos=True),
        use_tqdm=False,
    )
    after = llm.metrics()
    num_steps = after.num_steps - before.num_steps
    return {phase: 1e3 * (after.phase_seconds[phase] - before.phase_seconds[phase]) / num_steps for phase in PHASES}


def run(context: FigureContext) -> FigureResult:
    output_len = context.pick(full=64, quick=8)
    times = {size: phase_ms(context.llm, size, output_len) for size in context.pick(full=BATCH_SIZES, quick=(1, 4))}
    shares = {size: phases["forward"] / sum(phases.values()) for size, phases in times.items()}
    rows: list[list[Cell]] = [
        [size, *(f"{phases[phase]:.3f}" for phase in PHASES), f"{shares[size]:.1%}"] for size, phases in times.items()
    ]
    return FigureResult(
        columns=("sequences", *(f"{phase}, ms" for phase in PHASES), "forward"),
        rows=rows,
        headline=f"the forward pass takes {min(shares.values()):.1%} to {max(shares.values()):.1%} of a step; the "
        "rest is what overlapping could hide",
        paper_value="the loop's five phases are named; no times are given",
        notes=(
            f"{context.llm.kernels_name} kernels, {context.llm.num_threads} threads; {PROMPT_LEN} prompt tokens and "
            f"{output_len} generated ones a sequence, sampled with top-p. Times are means over the steps of a run.",
            "TensorRT-LLM's names: fetch requests, schedule, prepare and forward, sample, finish.",
        ),
        plot=lambda axes: draw(axes, times),
    )


def draw(axes: Axes, times: dict[int, dict[str, float]]) -> None:
    """One stacked bar a batch size, as shares of a step."""
    bottoms = dict.fromkeys(times, 0.0)
    for phase in PHASES:
        heights = {size: 100 * phases[phase] / sum(phases.values()) for size, phases in times.items()}
        axes.bar([str(size) for size in times], list(heights.values()), bottom=list(bottoms.values()), label=phase)
        bottoms = {size: bottoms[size] + heights[size] for size in times}
    axes.set_xlabel("sequences")
    axes.set_ylabel("% of a step")
    axes.legend()


FIGURE = Figure(
    name="tensorrt-phases",
    system="TensorRT-LLM",
    title="Phases of a step",
    paper="TensorRT-LLM documentation, architecture overview",
    method="real model",
    run=run,
)
