"""sglang-optimal: schedule policies against the best of all orders, on batches small enough to try every order."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..runtime.policies.base import SchedulePolicy
from .comparison_policies import UnagedLongestPrefixMatch, all_policies
from .context import FigureContext
from .cost_model import UNIT_STEPS
from .figure import Figure, FigureResult
from .offline_optimum import best_of_all_orders, depth_first, num_hit_tokens
from .simulation import VOCAB_SIZE, Arrival, Simulation, simulated_request
from .workloads import Tokens, TokenSource

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLOCK_SIZE = 16
DEPTH_FIRST = "depth-first"


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts that are all there at the start, and a pool that holds the longest of them and little more."""

    prompts: list[Tokens]
    num_blocks: int


def random_batch(source: TokenSource, num_prompts: int) -> Batch:
    """Prompts along the branches of a random tree, in random order.

    Each prompt follows an earlier one for a random number of blocks and goes on with one to four blocks of its own.
    Prompts are whole blocks: the theorem counts tokens, and the cache shares blocks.
    """
    prompts = [source.tokens(BLOCK_SIZE * source.between(3, 6))]
    while len(prompts) < num_prompts:
        followed = source.random.choice(prompts)
        num_shared = BLOCK_SIZE * source.between(0, len(followed) // BLOCK_SIZE - 1)
        prompts.append(followed[:num_shared] + source.tokens(BLOCK_SIZE * source.between(1, 4)))
    source.random.shuffle(prompts)
    longest = max(map(len, prompts)) // BLOCK_SIZE
    return Batch(prompts, longest + source.between(1, 3))


def num_hits_of_policy(batch: Batch, policy: SchedulePolicy) -> int:
    """Hit tokens when the engine serves the batch one request at a time in the policy's order."""
    simulation = Simulation(
        UNIT_STEPS,
        num_blocks=batch.num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=1,
    )
    simulation.engine.scheduler.policy = policy
    simulation.run(
        Arrival(0.0, simulated_request(f"request {idx}", prompt, 1)) for idx, prompt in enumerate(batch.prompts)
    )
    return simulation.engine.metrics.num_cached_tokens


def shares_of_optimum(batch: Batch) -> dict[str, float] | None:
    """Hit tokens of every policy and of depth-first order, over those of the best order; None if nothing is shared."""
    best = best_of_all_orders(batch.prompts, batch.num_blocks, BLOCK_SIZE)
    if best == 0:
        return None
    hits = {DEPTH_FIRST: num_hit_tokens(depth_first(batch.prompts), batch.num_blocks, BLOCK_SIZE)}
    hits |= {name: num_hits_of_policy(batch, policy) for name, policy in all_policies().items()}
    return {name: num_hits / best for name, num_hits in hits.items()}


def run(context: FigureContext) -> FigureResult:
    num_batches, num_prompts = context.pick(full=(60, 6), quick=(4, 5))
    source = TokenSource(7, VOCAB_SIZE)
    found = [shares_of_optimum(random_batch(source, num_prompts)) for _ in range(num_batches)]
    shares = [share for share in found if share is not None]
    by_order = {name: [share[name] for share in shares] for name in shares[0]}
    rows = tuple(
        (
            name,
            f"{statistics.mean(values):.1%}",
            f"{min(values):.1%}",
            f"{sum(value == 1.0 for value in values)} of {len(values)}",
        )
        for name, values in by_order.items()
    )
    return FigureResult(
        columns=("order of service", "mean share of the optimum", "lowest", "optimal batches"),
        rows=rows,
        headline=f"depth-first order is optimal in {rows[0][3]} batches, longest match first in "
        f"{sum(share == 1.0 for share in by_order[UnagedLongestPrefixMatch.name])}, and in "
        f"{sum(share == 1.0 for share in by_order['lpm'])} with the aging of lpm",
        paper_value="theorem 3.1: depth-first order is optimal if the cache holds the longest request, and "
        "longest-shared-prefix-first is such an order",
        notes=(
            f"{len(shares)} random batches of {num_prompts} prompts that share something, served one at a time by a "
            "pool of one to three blocks more than the longest prompt. Optimum: the best of all orders on the real "
            "cache.",
            "The engine's policies age: who is overtaken moves up, at the price of some hits.",
        ),
        plot=lambda axes: draw(axes, by_order),
    )


def draw(axes: Axes, by_order: dict[str, list[float]]) -> None:
    """The distribution of the share over the batches, a box for each order."""
    axes.boxplot(list(by_order.values()), showmeans=True)
    axes.set_xticks(range(1, len(by_order) + 1), list(by_order), rotation=20)
    axes.set_ylabel("hit tokens, share of the best order")


FIGURE = Figure(
    name="sglang-optimal",
    system="SGLang",
    title="Orders of service against the best of all orders",
    paper="SGLang (arXiv 2312.07104), section 3 and theorem 3.1",
    method="cache only",
    run=run,
)
