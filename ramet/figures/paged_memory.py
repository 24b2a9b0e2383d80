"""paged-memory: how much of the KV memory holds the state of a token, contiguous and in blocks."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, get_args

from .context import FigureContext
from .contiguous import Reservation, serve
from .figure import Figure, FigureResult
from .lengths import ALPACA, MAX_CONTEXT_LEN, SHAREGPT, LengthDistribution
from .pool_meter import meter_requests

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_SLOTS = 15_696
"""What the paper has for OPT-13B on an A100: 12 GB at 0.8 MB a token (table 1)."""
SCHEMES = ("Orca (max)", "Orca (pow2)", "Orca (oracle)", "blocks of 16")


def utilisation(lengths: LengthDistribution, num_contiguous: int, num_output_tokens: int) -> list[tuple[float, float]]:
    """For each scheme: written slots as a share of the whole pool, and of what is allocated."""
    rng = random.Random(0)
    sample = [lengths.sample(rng) for _ in range(num_contiguous)]
    shares = []
    for reservation in get_args(Reservation):
        usage = serve(sample, reservation, NUM_SLOTS, MAX_CONTEXT_LEN)
        shares.append((usage.written / usage.pool, usage.written / usage.reserved))
    meter = meter_requests(lengths, num_output_tokens, num_slots=NUM_SLOTS)
    return [*shares, (meter.written / meter.pool, meter.written / meter.allocated)]


def run(context: FigureContext) -> FigureResult:
    num_contiguous, num_output_tokens = context.pick(full=(4000, 200_000), quick=(600, 40_000))
    by_lengths = {
        lengths.name: utilisation(lengths, num_contiguous, num_output_tokens) for lengths in (SHAREGPT, ALPACA)
    }
    paper = ("20.4 %", "26.8 %", "38.2 %", "96.3 %")
    rows = tuple(
        (scheme, value, *(f"{share:.1%}" for shares in by_lengths.values() for share in shares[idx]))
        for idx, (scheme, value) in enumerate(zip(SCHEMES, paper, strict=True))
    )
    sharegpt = by_lengths[SHAREGPT.name]
    return FigureResult(
        columns=("scheme", "paper", *(f"{name}, of {whole}" for name in by_lengths for whole in ("pool", "allocated"))),
        rows=rows,
        headline=f"{sharegpt[0][0]:.1%} to {sharegpt[2][0]:.1%} of a contiguous pool hold tokens, "
        f"{sharegpt[3][0]:.1%} of one in blocks",
        paper_value="20.4 % to 38.2 % in contiguous schemes, 96.3 % in blocks",
        notes=(
            f"A pool of {NUM_SLOTS:,} slots under load. Contiguous: a buddy allocator, requests served in order of "
            f"arrival, contexts up to {MAX_CONTEXT_LEN}. Blocks: ramet's engine, block tables read after each step; "
            "a request starts as soon as its first step fits, and one is preempted when the pool is full.",
            "Lengths are log-normal with the paper's means; its traces are not bundled.",
        ),
        plot=lambda axes: draw(axes, by_lengths),
    )


def draw(axes: Axes, by_lengths: dict[str, list[tuple[float, float]]]) -> None:
    """Bars of the share of the pool that holds tokens."""
    width = 0.8 / len(by_lengths)
    for idx, (name, shares) in enumerate(by_lengths.items()):
        heights = [100 * of_pool for of_pool, _ in shares]
        axes.bar([position + idx * width for position in range(len(SCHEMES))], heights, width, label=name)
    axes.set_xticks([position + 0.4 - width / 2 for position in range(len(SCHEMES))], SCHEMES)
    axes.set_ylabel("% of KV memory that holds tokens")
    axes.legend()


FIGURE = Figure(
    name="paged-memory",
    system="PagedAttention",
    title="KV memory that holds tokens",
    paper="PagedAttention (SOSP 2023), figure 2",
    method="scheduler over a cost model",
    run=run,
)
