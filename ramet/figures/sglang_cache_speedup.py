"""sglang-cache-speedup: the same programs with and without the prefix cache, on the real model."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..frontend.backends.local import LocalBackend
from .context import FigureContext
from .figure import Figure, FigureResult
from .sglang_programs import ProgramBatch, program_batches

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(slots=True)
class Runs:
    """Runs of one batch of programs on one backend.

    Attributes:
        seconds: one number a run.
        texts: of the last run's states, one an item.
        hit_rate: of the last run.
    """

    seconds: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    hit_rate: float = 0.0


def run_once(batch: ProgramBatch, backend: LocalBackend, runs: Runs) -> None:
    """Run the programs from an empty cache, greedily, to fixed lengths. Raises what a program raises."""
    backend.flush_cache()
    before = backend.llm.metrics()
    start = time.perf_counter()
    states = batch.program.run_batch(batch.items, backend=backend, temperature=0.0, ignore_eos=True)
    runs.seconds.append(time.perf_counter() - start)
    for state in states:
        error = state.error()
        if error is not None:
            raise error
    runs.texts = [state.text() for state in states]
    after = backend.llm.metrics()
    num_prompt_tokens = after.num_prompt_tokens - before.num_prompt_tokens
    runs.hit_rate = (after.num_cached_tokens - before.num_cached_tokens) / num_prompt_tokens


def run(context: FigureContext) -> FigureResult:
    num_repeats = context.pick(full=2, quick=1)
    batches = program_batches(*context.pick(full=(1.0, 5, 12), quick=(0.05, 1, 1)))
    with_cache, without_cache = ([Runs() for _ in batches] for _ in range(2))
    with (
        context.new_llm() as cached_llm,
        context.new_llm(enable_prefix_caching=False) as uncached_llm,
        LocalBackend(cached_llm) as cached,
        LocalBackend(uncached_llm) as uncached,
    ):
        for _ in range(num_repeats):
            for idx, batch in enumerate(batches):
                run_once(batch, cached, with_cache[idx])
                run_once(batch, uncached, without_cache[idx])
        machine = f"SmolLM2-135M, {cached_llm.kernels_name} kernels, {cached_llm.num_threads} threads"
    speedups: dict[str, float] = {}
    rows = []
    for batch, on, off in zip(batches, with_cache, without_cache, strict=True):
        on_s, off_s = statistics.median(on.seconds), statistics.median(off.seconds)
        speedups[batch.name] = off_s / on_s
        is_same = "yes" if on.texts == off.texts else "no"
        rows.append(
            (
                batch.name,
                len(batch.items),
                f"{on.hit_rate:.0%}",
                round(on_s, 2),
                round(off_s, 2),
                f"{off_s / on_s:.1f}x",
                is_same,
            )
        )
    return FigureResult(
        columns=("programs", "items", "hit rate", "cache on s", "cache off s", "speedup", "same texts"),
        rows=tuple(rows),
        headline=f"{min(speedups.values()):.1f}x to {max(speedups.values()):.1f}x the throughput with the prefix cache",
        paper_value="up to 6.4x the throughput of engines without a prefix cache",
        notes=(
            "Programs in ramet's language (function, gen, select, fork, roles), all items at the same time, greedy, to "
            f"fixed lengths, from an empty cache; median of {num_repeats} rounds, cache on and off in turn.",
            f"{machine}. The only difference is enable_prefix_caching; frontend, scheduler and kernels are the same.",
            "The paper's baselines are other engines of its time on a GPU. The ratio grows with the share of the "
            "prompts that is shared and shrinks with the length of the outputs.",
        ),
        plot=lambda axes: draw(axes, speedups),
    )


def draw(axes: Axes, speedups: dict[str, float]) -> None:
    """Throughput with the cache over that without, a bar a kind of program."""
    axes.barh(list(speedups), list(speedups.values()))
    axes.axvline(1.0, color="black", linestyle="dashed")
    axes.invert_yaxis()
    axes.set_xlabel("throughput with the cache over throughput without")


FIGURE = Figure(
    name="sglang-cache-speedup",
    system="SGLang",
    title="Throughput of programs with and without the prefix cache",
    paper="SGLang (arXiv 2312.07104), section 6.2",
    method="real model",
    run=run,
)
