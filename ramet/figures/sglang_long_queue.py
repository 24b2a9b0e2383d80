"""sglang-long-queue: the hit rate while hundreds wait, with and without a limit on how many are looked up."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ..runtime.policies.base import SchedulePolicy
from ..runtime.policies.fcfs import FirstComeFirstServed
from ..runtime.policies.lpm import LongestPrefixMatch
from .comparison_policies import MAX_LOOKUPS, LookupLimited
from .context import FigureContext
from .cost_model import A100_13B
from .figure import Cell, Figure, FigureResult
from .lengths import random_prompt
from .offline_optimum import depth_first, num_hit_tokens
from .simulation import Arrival, Simulation, simulated_request
from .workloads import Tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLOCK_SIZE = 16
NUM_GROUPS, PREFIX_LEN, QUESTION_LEN, OUTPUT_LEN = 16, 512, 32, 4
NUM_SLOTS = 8
NUM_BLOCKS = 192
"""About a third of what the prefixes alone take."""


def prompts_of(num_requests: int) -> list[Tokens]:
    """Questions behind one of NUM_GROUPS prefixes each, in random order."""
    rng = random.Random(num_requests)
    prefixes = [random_prompt(PREFIX_LEN, rng) for _ in range(NUM_GROUPS)]
    prompts = [prefixes[idx % NUM_GROUPS] + random_prompt(QUESTION_LEN, rng) for idx in range(num_requests)]
    rng.shuffle(prompts)
    return prompts


def hit_rate(policy: SchedulePolicy, prompts: list[Tokens]) -> float:
    """All prompts wait from the start; the share of their tokens that comes from the cache."""
    simulation = Simulation(A100_13B, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_num_seqs=NUM_SLOTS)
    simulation.engine.scheduler.policy = policy
    simulation.run(Arrival(0.0, simulated_request(f"{idx}", prompt, OUTPUT_LEN)) for idx, prompt in enumerate(prompts))
    return simulation.engine.metrics.cache_hit_rate


def run(context: FigureContext) -> FigureResult:
    lengths = context.pick(full=(64, 128, 256, 512, 1024), quick=(64, 160))
    policies = (LongestPrefixMatch(), LookupLimited(), FirstComeFirstServed())
    rates: dict[str, list[float]] = {policy.name: [] for policy in policies}
    best = []
    for num_requests in lengths:
        prompts = prompts_of(num_requests)
        best.append(num_hit_tokens(depth_first(prompts), NUM_BLOCKS, BLOCK_SIZE) / sum(map(len, prompts)))
        for policy in policies:
            rates[policy.name].append(hit_rate(policy, prompts))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (num_requests, *(f"{values[idx]:.1%}" for values in (*rates.values(), best)))
        for idx, num_requests in enumerate(lengths)
    )
    return FigureResult(
        columns=("waiting at the start", *rates, "best possible"),
        rows=rows,
        headline=f"with {lengths[-1]} waiting, lpm keeps {rates['lpm'][-1]:.1%} of a possible {best[-1]:.1%}; with a "
        f"limit of {MAX_LOOKUPS} lookups it is {rates[LookupLimited.name][-1]:.1%}",
        paper_value="no number; SGLang's scheduler falls back to order of arrival when more than 128 wait",
        notes=(
            f"{NUM_GROUPS} prefixes of {PREFIX_LEN} tokens, questions of {QUESTION_LEN} tokens in random order, "
            f"{NUM_SLOTS} sequences at a time in {NUM_BLOCKS} blocks of {BLOCK_SIZE} tokens.",
            "Best possible: depth-first order, served one at a time in the same pool (theorem 3.1).",
        ),
        plot=lambda axes: draw(axes, lengths, rates | {"best possible": best}),
    )


def draw(axes: Axes, lengths: tuple[int, ...], rates: dict[str, list[float]]) -> None:
    """Hit rate over the length of the queue, a line a policy."""
    for name, values in rates.items():
        axes.plot(lengths, values, marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("requests waiting at the start")
    axes.set_ylabel("cache hit rate")
    axes.legend(fontsize="small")


FIGURE = Figure(
    name="sglang-long-queue",
    system="SGLang",
    title="Cache-aware order with a long queue",
    paper="SGLang's scheduler (its source, schedule policy); no figure in the paper",
    method="scheduler over a cost model",
    run=run,
)
