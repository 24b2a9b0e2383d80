"""tensorrt-overlap: host work of one step beside the computation of the next one, and what that wastes."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ..runtime.config import EngineConfig
from ..runtime.engine import Engine
from ..runtime.request import Request
from ..runtime.tokenizer import Tokenizer
from ..sampling_params import SamplingParams
from .context import FigureContext
from .cost_model import CostModel
from .figure import Figure, FigureResult
from .lengths import random_prompt
from .simulation import END_TEXT, MAX_MODEL_LEN, ByteTokenizer, CostModelRunner, ScatterSampler, StepPart

PROMPT_LEN = 16
NUM_DEVICE_SEQUENCES, NUM_MODEL_SEQUENCES = 64, 16
DEVICE_STEP = CostModel(source="5 ms a step", step_s=5e-3, prefill_token_s=0.0, decode_s=0.0)


class SleepingRunner(CostModelRunner):
    """Stands in for a device that computes by itself: a step takes real time and no processor."""

    def _run(self, parts: tuple[StepPart, ...], num_context_tokens: int, num_rows: int, num_preempted: int) -> Tensor:
        start_s = self.now_s
        logits = super()._run(parts, num_context_tokens, num_rows, num_preempted)
        time.sleep(self.now_s - start_s)
        return logits


@dataclass(frozen=True, slots=True)
class Run:
    """One run: seconds, and tokens that were computed for sequences which had ended."""

    seconds: float
    num_wasted_tokens: int


def run_on_device(overlap: bool, num_steps: int) -> Run:
    """Decode NUM_DEVICE_SEQUENCES sequences on a device that sleeps; they end by a stop string, a few a step."""
    config = EngineConfig(seed=0, num_blocks=4096, overlap_schedule=overlap, max_num_batched_tokens=4096)
    runner = SleepingRunner(DEVICE_STEP, 4096, config.block_size)
    engine = Engine(config, runner, cast(Tokenizer, ByteTokenizer()), MAX_MODEL_LEN, ScatterSampler())
    rng = random.Random(0)
    for idx in range(NUM_DEVICE_SEQUENCES):
        params = SamplingParams(stop=END_TEXT, min_tokens=num_steps - idx % 8, max_tokens=2 * num_steps)
        prompt = tuple(random_prompt(PROMPT_LEN, rng))
        engine.add_request(Request(request_id=f"{idx}", prompt_token_ids=prompt, sampling_params=params))
    start = time.perf_counter()
    while engine.has_work:
        engine.step()
    seconds = time.perf_counter() - start
    engine.close()
    return Run(seconds, engine.metrics.num_wasted_tokens)


def fastest_on_device(num_steps: int, num_repeats: int) -> dict[bool, Run]:
    """Without and with overlap in turns; the fastest run of each."""
    runs = [{overlap: run_on_device(overlap, num_steps) for overlap in (False, True)} for _ in range(num_repeats)]
    return {overlap: min((pair[overlap] for pair in runs), key=lambda run: run.seconds) for overlap in (False, True)}


def run_on_model(context: FigureContext, num_threads: int, output_len: int, num_repeats: int) -> dict[bool, Run]:
    """The same on the real model, without and with overlap; they take turns, and the fastest of each counts."""
    best: dict[bool, Run] = {}
    modes = (False, True)
    llms = {overlap: context.new_llm(num_threads=num_threads, overlap_schedule=overlap) for overlap in modes}
    try:
        for repeat in range(num_repeats):
            rng = random.Random(repeat)
            prompts = [{"prompt_token_ids": random_prompt(PROMPT_LEN, rng)} for _ in range(NUM_MODEL_SEQUENCES)]
            params = SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=output_len, ignore_eos=True)
            for overlap, llm in llms.items():
                num_wasted_before = llm.metrics().num_wasted_tokens
                start = time.perf_counter()
                llm.generate(prompts, params, use_tqdm=False)
                seconds = time.perf_counter() - start
                if overlap not in best or seconds < best[overlap].seconds:
                    best[overlap] = Run(seconds, llm.metrics().num_wasted_tokens - num_wasted_before)
    finally:
        for llm in llms.values():
            llm.shutdown()
    return best


def run(context: FigureContext) -> FigureResult:
    num_steps = context.pick(full=100, quick=20)
    output_len, num_repeats = context.pick(full=(48, 4), quick=(4, 1))
    runs = {"device that computes by itself": fastest_on_device(num_steps, num_repeats)}
    for num_threads in context.pick(full=(1, 2), quick=(1,)):
        label = f"real model, {num_threads} CPU thread{'s' if num_threads > 1 else ''}"
        runs[label] = run_on_model(context, num_threads, output_len, num_repeats)
    ratios = {label: by_mode[False].seconds / by_mode[True].seconds for label, by_mode in runs.items()}
    rows = tuple(
        (
            label,
            f"{by_mode[False].seconds:.2f}",
            f"{by_mode[True].seconds:.2f}",
            f"{ratios[label]:.2f}x",
            by_mode[False].num_wasted_tokens,
            by_mode[True].num_wasted_tokens,
        )
        for label, by_mode in runs.items()
    )
    device, *on_cpu = ratios.values()
    return FigureResult(
        columns=("where", "in turn, s", "overlapped, s", "speedup", "wasted rows in turn", "wasted rows overlapped"),
        rows=rows,
        headline=f"{device:.2f}x on a device that computes by itself, "
        + ", ".join(f"{ratio:.2f}x" for ratio in on_cpu)
        + " where the model needs the cores the host work needs",
        paper_value="on by default; costs at most one extra step for a sequence that ends; no ratio is given",
        notes=(
            f"The device sleeps for {DEVICE_STEP.source} over {NUM_DEVICE_SEQUENCES} sequences, {num_steps} steps; "
            f"the model generates {output_len} tokens for {NUM_MODEL_SEQUENCES} sequences. Best of {num_repeats} runs.",
            "A row is wasted when the end of its sequence is seen only after the next step was launched. So it is for "
            "stop strings, by which the sequences on the device end; stop tokens and lengths are looked at before.",
        ),
    )


FIGURE = Figure(
    name="tensorrt-overlap",
    system="TensorRT-LLM",
    title="Overlap scheduler",
    paper="TensorRT-LLM documentation, overlap scheduler",
    method="real model",
    run=run,
)
