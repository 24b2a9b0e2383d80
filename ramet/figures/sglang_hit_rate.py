"""sglang-hit-rate: what each schedule policy gets out of a pool that is too small for everything."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..runtime.policies.base import SchedulePolicy
from ..runtime.policies.fcfs import FirstComeFirstServed
from .comparison_policies import UnagedLongestPrefixMatch, all_policies
from .context import FigureContext
from .cost_model import A100_13B
from .figure import Cell, Figure, FigureResult
from .offline_optimum import depth_first, num_hit_tokens
from .program_simulation import ProgramSimulation
from .simulation import VOCAB_SIZE, RequestRecord, Simulation
from .workloads import WORKLOADS, TokenSource, Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLOCK_SIZE = 16
POOL_SHARE = 0.2
"""Blocks in the pool, as a share of the working set."""
NUM_SLOTS = 8
UNBOUNDED = 1 << 16
"""More blocks than any of the workloads needs."""


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """Hit rates of one workload, in [0, 1].

    Attributes:
        num_blocks: the pool.
        best: the optimum where the calls are known ahead, else the hit rate of an unbounded pool: an upper bound.
        by_policy: of every schedule policy, and of longest match without aging.
    """

    workload: Workload
    num_calls: int
    num_blocks: int
    best: float
    by_policy: Mapping[str, float]


def simulate(
    workload: Workload, num_programs: int, num_blocks: int, policy: SchedulePolicy
) -> tuple[Simulation, list[RequestRecord]]:
    """Run the workload, the same programs at every call, to its end."""
    simulation = Simulation(
        A100_13B,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=NUM_SLOTS,
    )
    simulation.engine.scheduler.policy = policy
    programs, start_times_s = workload.draw(TokenSource(1, VOCAB_SIZE), num_programs)
    return simulation, ProgramSimulation(simulation).run(programs, start_times_s)


def measure(workload: Workload, num_programs: int) -> WorkloadResult:
    """The working set first, with room for everything; then every policy in POOL_SHARE of it."""
    unbounded, records = simulate(workload, num_programs, UNBOUNDED, FirstComeFirstServed())
    num_blocks = int(POOL_SHARE * unbounded.engine.cache.num_tree_blocks)
    best = unbounded.engine.metrics.cache_hit_rate
    if workload.is_known_ahead:
        prompts = depth_first([list(record.request.prompt_token_ids) for record in records])
        best = num_hit_tokens(prompts, num_blocks, BLOCK_SIZE) / sum(map(len, prompts))
    by_policy = {
        name: simulate(workload, num_programs, num_blocks, policy)[0].engine.metrics.cache_hit_rate
        for name, policy in all_policies().items()
    }
    return WorkloadResult(workload, len(records), num_blocks, best, by_policy)


def run(context: FigureContext) -> FigureResult:
    results = [
        measure(workload, context.pick(full=workload.num_programs, quick=max(8, workload.num_programs // 4)))
        for workload in WORKLOADS
    ]
    shares = {
        name: statistics.mean(result.by_policy[name] / result.best for result in results)
        for name in results[0].by_policy
    }
    rows: list[tuple[Cell, ...]] = [
        (
            result.workload.name,
            result.num_calls,
            result.num_blocks,
            f"{result.best:.1%}",
            *(f"{result.by_policy[name]:.1%}" for name in results[0].by_policy),
        )
        for result in results
    ]
    rows.append(("mean share of the best", "", "", "100.0%", *(f"{share:.1%}" for share in shares.values())))
    unaged = UnagedLongestPrefixMatch.name
    return FigureResult(
        columns=("workload", "calls", "blocks", "best possible", *shares),
        rows=tuple(rows),
        headline=f"{shares[unaged]:.1%} of the best possible hit rate in the paper's order, without aging; "
        f"lpm {shares['lpm']:.1%}, dfs-weight {shares['dfs-weight']:.1%}, fcfs {shares['fcfs']:.1%}",
        paper_value="hit rates of 50% to 99% over the benchmarks, 96% of the optimal hit rate on average",
        notes=(
            f"Hit rate: prompt tokens found in the cache, of all prompt tokens. Pool: {POOL_SHARE:.0%} of the working "
            f"set (all blocks that an unbounded pool ends up with); {NUM_SLOTS} sequences at a time.",
            "Best possible: for few-shot, where all calls are known ahead, depth-first order served one at a time in "
            "the same pool (theorem 3.1); for the others an upper bound, the hit rate of an unbounded pool.",
            "Priorities are drawn for each call from three classes; the routing key is the task, problem, chat or "
            "agent that a call belongs to.",
            "Few-shot and multi-turn start all at once, and each next turn arrives when the last one has ended; the "
            "others start as a Poisson process.",
            "The product's lpm and dfs-weight age, so that nobody starves (figure sglang-starvation), and pay for "
            "it in hits.",
            f"Virtual time: {A100_13B.source}.",
        ),
        plot=lambda axes: draw(axes, results),
    )


def draw(axes: Axes, results: list[WorkloadResult]) -> None:
    """A group of bars a workload, a bar a policy, and a line for the best possible."""
    names = list(results[0].by_policy)
    width = 0.8 / len(names)
    for policy_idx, name in enumerate(names):
        positions = [group_idx + policy_idx * width for group_idx in range(len(results))]
        axes.bar(positions, [result.by_policy[name] for result in results], width=0.9 * width, label=name)
    for group_idx, result in enumerate(results):
        axes.hlines(
            result.best, group_idx - width / 2, group_idx + 0.8 - width / 2, colors="black", linestyles="dashed"
        )
    axes.set_xticks([idx + 0.4 - width / 2 for idx in range(len(results))], [r.workload.name for r in results])
    axes.set_ylabel("cache hit rate (dashed: best possible)")
    axes.set_ylim(0, 1.3)  # room for the legend
    axes.legend(fontsize="x-small", ncols=3, loc="upper center")


FIGURE = Figure(
    name="sglang-hit-rate",
    system="SGLang",
    title="Hit rate of the schedule policies",
    paper="SGLang (arXiv 2312.07104), sections 3 and 6.2",
    method="scheduler over a cost model",
    run=run,
)
