"""sarathi-tbt: what running decodes notice of long prompts that keep arriving, on the real model."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..runtime.engine import Engine
from .chunked_prefill import Schedule, chunked, percentile
from .context import FigureContext
from .figure import Figure, FigureResult
from .lengths import random_prompt
from .real_engine import RealModel
from .simulation import quiet_engine, simulated_request

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_DECODES = 8
NUM_BLOCKS = 1024
"""Room for all decodes and prompts at once."""
SCHEDULES = (Schedule("prefill-first", "prefill-first", 2048), chunked(512), chunked(256), chunked(128))


@dataclass(frozen=True, slots=True)
class Work:
    """What every schedule has to do.

    Attributes:
        num_output_tokens: of each decode.
        num_prompts, prompt_len: the prompts that arrive meanwhile; each generates one token.
        num_tokens_between: a prompt arrives whenever the decodes have got so many tokens together since the last one.
    """

    num_output_tokens: int
    num_prompts: int
    prompt_len: int
    num_tokens_between: int


@dataclass(slots=True)
class Outcome:
    """Runs of one schedule.

    Attributes:
        gaps: what `serve` found in the last run.
        all_gaps_s: the times between tokens of all runs.
        total_s: the time that all the work takes, a number a run.
    """

    schedule: Schedule
    gaps: list[tuple[float, float]] = field(default_factory=list)
    all_gaps_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)


def serve(engine: Engine, work: Work, rng: random.Random) -> tuple[list[tuple[float, float]], float]:
    """Run the work to its end. The clock starts when every decode has its first token.

    Returns:
        (seconds since the start, time between tokens) for each token that a decode waits for while there are
        prompts to compute, and the seconds of the whole run.
    """
    for idx in range(NUM_DECODES):
        engine.add_request(simulated_request(f"decode {idx}", random_prompt(16, rng), work.num_output_tokens))
    arrivals = [
        simulated_request(f"prompt {idx}", random_prompt(work.prompt_len, rng), 1) for idx in range(work.num_prompts)
    ]
    last_token_s: dict[str, float] = {}
    while len(last_token_s) < NUM_DECODES:
        last_token_s |= {chunk.request_id: time.perf_counter() for chunk in engine.step()}
    start_s = time.perf_counter()
    gaps: list[tuple[float, float]] = []
    num_tokens, num_left, prompts_end_s = work.num_tokens_between, work.num_prompts, math.inf
    while engine.has_work:
        if num_tokens >= work.num_tokens_between and arrivals:
            engine.add_request(arrivals.pop())
            num_tokens = 0
        chunks = engine.step()
        now_s = time.perf_counter()
        num_left -= sum(chunk.request_id not in last_token_s for chunk in chunks)
        prompts_end_s = now_s if num_left == 0 and prompts_end_s == math.inf else prompts_end_s
        for chunk in chunks:
            before_s = last_token_s.get(chunk.request_id)
            if before_s is None:
                continue
            if before_s < prompts_end_s:
                gaps.append((now_s - start_s, now_s - before_s))
            last_token_s[chunk.request_id] = now_s
            num_tokens += 1
    return gaps, time.perf_counter() - start_s


def measure(model: RealModel, work: Work, num_repeats: int) -> list[Outcome]:
    """Every schedule in turn, `num_repeats` times, so that what else the machine does falls on all alike."""
    outcomes = [Outcome(schedule) for schedule in SCHEDULES]
    serve(model.engine(), Work(2, 1, 64, 1), random.Random(0))  # the first steps of a process are slow
    for repeat in range(num_repeats):
        for outcome in outcomes:
            schedule = outcome.schedule
            engine = model.engine(
                max_num_batched_tokens=schedule.num_tokens,
                batching=schedule.batching,
                schedule_policy="fcfs",
                enable_prefix_caching=False,
            )
            outcome.gaps, total_s = serve(engine, work, random.Random(repeat))
            outcome.all_gaps_s += [gap_s for _, gap_s in outcome.gaps]
            outcome.total_s.append(total_s)
    return outcomes


def run(context: FigureContext) -> FigureResult:
    work = context.pick(full=Work(72, 5, 1024, 64), quick=Work(12, 1, 160, 16))
    num_repeats = context.pick(full=2, quick=1)
    model = RealModel(num_blocks=NUM_BLOCKS)
    with quiet_engine():
        outcomes = measure(model, work, num_repeats)
    rows = []
    for outcome in outcomes:
        gaps_ms = [1e3 * gap_s for gap_s in outcome.all_gaps_s]
        total_s = statistics.median(outcome.total_s)
        slowdown = total_s / statistics.median(outcomes[0].total_s) - 1
        rows.append(
            (
                outcome.schedule.name,
                round(percentile(gaps_ms, 50)),
                round(percentile(gaps_ms, 99)),
                round(max(gaps_ms)),
                round(total_s, 1),
                f"{slowdown:+.0%}",
            )
        )
    first, last = rows[0], rows[-1]
    return FigureResult(
        columns=("schedule", "TBT median ms", "TBT p99 ms", "TBT max ms", "all work s", "against prefill-first"),
        rows=tuple(rows),
        headline=f"p99 time between tokens {first[2]} ms with {first[0]}, {last[2]} ms {last[0]}; "
        f"{last[5]} time for all the work",
        paper_value="prefill-first scheduling stalls decodes for whole prompts (up to seconds); chunks never do",
        notes=(
            f"{NUM_DECODES} decodes of {work.num_output_tokens} tokens; {work.num_prompts} prompts of "
            f"{work.prompt_len} tokens arrive, each when the decodes have got {work.num_tokens_between} tokens since "
            "the last. Times between tokens count while there are prompts to come or to compute.",
            f"{model.description}; {num_repeats} rounds over all schedules, in turn.",
        ),
        plot=lambda axes: draw(axes, outcomes),
    )


def draw(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    """Time between tokens over time, a point a token."""
    for outcome in outcomes:
        times_s, gaps_s = zip(*outcome.gaps, strict=True)
        axes.plot(times_s, gaps_s, ".", label=outcome.schedule.name)
    axes.set_yscale("log")
    axes.set_xlabel("s")
    axes.set_ylabel("time between tokens, s")
    axes.legend(fontsize="small")


FIGURE = Figure(
    name="sarathi-tbt",
    system="Sarathi-Serve",
    title="Time between tokens while prompts arrive",
    paper="Sarathi-Serve (OSDI 2024), sections 3.2 and 5.4",
    method="real model",
    run=run,
)
