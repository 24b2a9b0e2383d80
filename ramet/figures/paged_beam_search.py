"""paged-beam-search: KV memory that the beams of a search share, on the real model, whose scores decide who forks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.request import Request
from ..sampling_params import SamplingParams
from .context import FigureContext
from .figure import Figure, FigureResult
from .pool_meter import PoolMeter
from .real_engine import RealModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEAM_WIDTHS = (2, 4, 6)
OUTPUT_LEN = 58
"""Alpaca's mean."""
INSTRUCTIONS = (
    "Give three tips for staying healthy during a long winter in a cold country with very short days.",
    "Describe the structure of an atom in a few sentences, and name the three particles it is made of.",
    "Write a short story about a young fox that learns to swim in the river behind the old mill.",
    "Explain why the sky is blue to a child of six years, and use no words that are hard.",
)


def saved_by_beams(model: RealModel, prompts: list[tuple[int, ...]], beam_width: int, output_len: int) -> float:
    """Share of the beams' block table entries that cost no block, over a run of all prompts at once."""
    engine = model.engine()
    params = SamplingParams(
        use_beam_search=True, best_of=beam_width, temperature=0.0, max_tokens=output_len, ignore_eos=True
    )
    meter = PoolMeter(needs_waiting=False)
    for idx, prompt in enumerate(prompts):
        engine.add_request(Request(request_id=f"{idx}", prompt_token_ids=prompt, sampling_params=params))
    while engine.has_work:
        engine.step()
        meter(engine)
    engine.close()
    return meter.saved_by_sharing


def run(context: FigureContext) -> FigureResult:
    num_prompts, output_len = context.pick(full=(len(INSTRUCTIONS), OUTPUT_LEN), quick=(2, 12))
    widths = context.pick(full=BEAM_WIDTHS, quick=BEAM_WIDTHS[:2])
    prompts = [tuple(context.llm.tokenizer.encode(text)) for text in INSTRUCTIONS[:num_prompts]]
    model = RealModel(num_blocks=512)
    saved = {width: saved_by_beams(model, prompts, width, output_len) for width in widths}
    paper = {2: "37.6 %", 4: "between", 6: "55.2 %"}
    rows = tuple((width, f"{share:.1%}", paper[width]) for width, share in saved.items())
    return FigureResult(
        columns=("beams", "blocks saved", "paper, Alpaca"),
        rows=rows,
        headline=f"{saved[widths[0]]:.1%} of the blocks saved with {widths[0]} beams, "
        f"{saved[widths[-1]]:.1%} with {widths[-1]}",
        paper_value="37.6 % to 55.2 % on Alpaca, 44.3 % to 66.3 % on ShareGPT",
        notes=(
            f"{num_prompts} instructions of {min(map(len, prompts))} to {max(map(len, prompts))} tokens, {output_len} "
            "tokens generated; 1 - distinct blocks / entries of all block tables, over the steps, at block size 16.",
            f"{model.description}. The share depends on how often all beams descend from one: the more the model "
            "agrees with itself, the more they share.",
        ),
        plot=lambda axes: draw(axes, saved),
    )


def draw(axes: Axes, saved: dict[int, float]) -> None:
    """One bar a width."""
    axes.bar([str(width) for width in saved], [100 * share for share in saved.values()])
    axes.set_xlabel("beams")
    axes.set_ylabel("% of the blocks saved")


FIGURE = Figure(
    name="paged-beam-search",
    system="PagedAttention",
    title="Memory shared by beams",
    paper="PagedAttention (SOSP 2023), section 6.3 and figure 15",
    method="real model",
    run=run,
)
