"""orca-selective-batching: which ops of a step see all its rows at once, and what that is worth."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..kernels.interface import AttentionMetadata, LinearWeight
from ..kernels.torch_cpu.kernels import TorchKernels
from ..runtime.config import EngineConfig
from ..runtime.engine import Engine
from ..runtime.runner import ModelRunner
from ..runtime.tokenizer import load_tokenizer
from ..runtime.weights.load import load_model
from ..runtime.weights.resolve import resolve_model
from .context import FigureContext
from .cost_model import decode_step_seconds
from .figure import Figure, FigureResult
from .simulation import simulated_request

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BATCH_SIZES = (1, 2, 4, 8, 16)
PROMPT_LENS = (5, 11, 23)
"""Of the sequences that decode in the counted step; another one of LATE_PROMPT_LEN joins with its whole prompt."""
LATE_PROMPT_LEN = 40


class CountingKernels(TorchKernels):
    """The torch ops, counting their calls by (op, rows); for attention by (op, rows, sequences)."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.calls: Counter[tuple[str, int, int]] = Counter()

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
        self.calls["linear", x.shape[0], 1] += 1
        return super().linear(x, weight, bias)

    def embedding(self, token_ids: Tensor, weight: LinearWeight) -> Tensor:
        self.calls["embedding", token_ids.shape[0], 1] += 1
        return super().embedding(token_ids, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        self.calls["rms_norm", x.shape[0], 1] += 1
        return super().rms_norm(x, weight, eps)

    def attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        self.calls["attention", query.shape[0], len(metadata.context_lens)] += 1
        return super().attention(query, key_cache, value_cache, metadata, scale, sliding_window)


def count_mixed_step() -> tuple[Counter[tuple[str, int, int]], int]:
    """The calls of one step in which three sequences decode and a fourth computes its prompt, and how many layers."""
    kernels = CountingKernels(torch.device("cpu"))
    checkpoint = resolve_model("smollm2")
    model = load_model(checkpoint, kernels)
    config = EngineConfig(seed=0, num_blocks=64, overlap_schedule=False)
    runner = ModelRunner(model, kernels, 64, config.block_size)
    engine = Engine(config, runner, load_tokenizer(checkpoint.tokenizer_source), model.max_model_len)
    for idx, prompt_len in enumerate(PROMPT_LENS):
        engine.add_request(simulated_request(f"{idx}", range(100 * idx + 3, 100 * idx + 3 + prompt_len), 4))
    engine.step()
    engine.add_request(simulated_request("late", range(503, 503 + LATE_PROMPT_LEN), 4))
    kernels.calls.clear()
    engine.step()
    engine.close()
    return kernels.calls, model.config.num_layers


def run(context: FigureContext) -> FigureResult:
    calls, num_layers = count_mixed_step()
    batch_sizes = context.pick(full=BATCH_SIZES, quick=(1, 4))
    seconds = decode_step_seconds(context.llm, batch_sizes, context.pick(full=5, quick=1))
    speedups = {size: size * seconds[1] / seconds[size] for size in batch_sizes}
    num_rows = LATE_PROMPT_LEN + len(PROMPT_LENS)
    table = [
        (
            "calls in a mixed step",
            f"{op} of {num_sequences} sequences" if op == "attention" else op,
            f"{num_calls} of {num_op_rows} rows",
        )
        for (op, num_op_rows, num_sequences), num_calls in sorted(calls.items())
    ]
    table += [
        ("one step against one a sequence", f"{size} decoding", f"{1e3 * seconds[size]:.1f} ms, {speedups[size]:.2f}x")
        for size in batch_sizes
    ]
    largest = batch_sizes[-1]
    return FigureResult(
        columns=("measure", "of", "value"),
        rows=tuple(table),
        headline=f"every op with parameters runs once over all rows of a mixed step, whatever they belong to; one step "
        f"of {largest} sequences is {speedups[largest]:.1f}x as fast as {largest} steps of one",
        paper_value="all ops but attention are batched over requests of different phase and length; no number given",
        notes=(
            f"Counted on the torch kernels: {len(PROMPT_LENS)} sequences decode and one computes {LATE_PROMPT_LEN} "
            f"prompt tokens, {num_rows} rows in all; {num_layers} layers of four products each, and the head over the "
            f"{len(PROMPT_LENS) + 1} rows that are sampled. Attention gets all rows too, with a block table and a "
            "length for each sequence, and nothing is padded.",
            f"Timed on {context.llm.kernels_name} kernels, {context.llm.num_threads} threads.",
        ),
        plot=lambda axes: draw(axes, speedups),
    )


def draw(axes: Axes, speedups: dict[int, float]) -> None:
    """Speedup over the batch size."""
    axes.plot(list(speedups), list(speedups.values()), marker="o", label="one batched step")
    axes.plot(list(speedups), list(speedups), linestyle="--", color="grey", label="as many times as sequences")
    axes.set_xlabel("sequences")
    axes.set_ylabel("speedup over one step a sequence")
    axes.legend()


FIGURE = Figure(
    name="orca-selective-batching",
    system="Orca",
    title="Selective batching",
    paper="Orca (OSDI 2022), section 3.2",
    method="real model",
    run=run,
)
