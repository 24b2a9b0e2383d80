"""paged-parallel-sampling: KV memory that samples of one prompt share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .context import FigureContext
from .figure import Cell, Figure, FigureResult
from .lengths import ALPACA, SHAREGPT
from .paged_memory import NUM_SLOTS
from .pool_meter import meter_requests

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_SAMPLES = (2, 4, 6)


def run(context: FigureContext) -> FigureResult:
    num_output_tokens = context.pick(full=100_000, quick=8_000)
    num_slots = context.pick(full=NUM_SLOTS, quick=NUM_SLOTS // 8)
    saved = {
        lengths.name: [
            meter_requests(lengths, num_output_tokens, num_slots=num_slots, n=num_samples).saved_by_sharing
            for num_samples in NUM_SAMPLES
        ]
        for lengths in (ALPACA, SHAREGPT)
    }
    rows: list[list[Cell]] = [
        [n, *(f"{shares[idx]:.1%}" for shares in saved.values())] for idx, n in enumerate(NUM_SAMPLES)
    ]
    alpaca, sharegpt = saved.values()
    return FigureResult(
        columns=("samples a request", *(f"blocks saved, {name}" for name in saved)),
        rows=rows,
        headline=f"{alpaca[0]:.1%} to {alpaca[-1]:.1%} of the blocks saved on Alpaca-like lengths, "
        f"{sharegpt[0]:.1%} to {sharegpt[-1]:.1%} on ShareGPT-like ones",
        paper_value="6.1 % to 9.8 % on Alpaca, 16.2 % to 30.5 % on ShareGPT",
        notes=(
            "1 - distinct blocks / entries of all block tables, summed over the steps of ramet's engine at block size "
            "16. Only whole blocks of a prompt are shared, so what is saved depends on the distribution of prompt "
            "lengths beyond its mean, and the traces are not bundled: log-normal lengths stand in for them.",
        ),
        plot=lambda axes: draw(axes, saved),
    )


def draw(axes: Axes, saved: dict[str, list[float]]) -> None:
    """One line a distribution of lengths."""
    for name, shares in saved.items():
        axes.plot(NUM_SAMPLES, [100 * share for share in shares], marker="o", label=name)
    axes.set_ylim(bottom=0)
    axes.set_xticks(NUM_SAMPLES)
    axes.set_xlabel("samples a request")
    axes.set_ylabel("% of the blocks saved")
    axes.legend()


FIGURE = Figure(
    name="paged-parallel-sampling",
    system="PagedAttention",
    title="Memory shared by parallel samples",
    paper="PagedAttention (SOSP 2023), section 6.3 and figure 15",
    method="scheduler over a cost model",
    run=run,
)
