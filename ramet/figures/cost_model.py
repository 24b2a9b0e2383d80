"""CostModel: what a step costs in seconds, from measured or stated constants."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..runtime.llm import LLM
from ..sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds of a step, linear in what it computes.

    Attributes:
        source: where the constants come from, for the reader.
        step_s: a step with nothing in it: weights streamed once, launches.
        prefill_token_s: each prompt token computed.
        decode_s: each sequence that computes one token.
        context_token_s: each token that attention reads, summed over the sequences.
    """

    source: str
    step_s: float
    prefill_token_s: float
    decode_s: float
    context_token_s: float = 0.0

    def step_seconds(self, num_prefill_tokens: int, num_decodes: int, num_context_tokens: int) -> float:
        """Seconds of one step."""
        return (
            self.step_s
            + self.prefill_token_s * num_prefill_tokens
            + self.decode_s * num_decodes
            + self.context_token_s * num_context_tokens
        )


UNIT_STEPS = CostModel(source="every step takes one unit of time", step_s=1.0, prefill_token_s=0.0, decode_s=0.0)


def roofline(
    source: str, *, num_parameters: float, kv_bytes_per_token: float, bytes_per_s: float, flops_per_s: float
) -> CostModel:
    """Constants by arithmetic for 16-bit weights on a device: each step reads the weights and the context once from
    memory, and each token costs two operations a parameter. The two times are added, which favours no batching.
    """
    token_s = 2 * num_parameters / flops_per_s
    return CostModel(
        source=source,
        step_s=2 * num_parameters / bytes_per_s,
        prefill_token_s=token_s,
        decode_s=token_s,
        context_token_s=kv_bytes_per_token / bytes_per_s,
    )


A100_13B = roofline(
    "arithmetic for 13 billion parameters on an A100: 1.5 TB/s and 200 TFLOP/s reached, 0.8 MB of KV a token",
    num_parameters=13e9,
    kv_bytes_per_token=0.8e6,
    bytes_per_s=1.5e12,
    flops_per_s=200e12,
)


def measure_cost_model(llm: LLM, num_repeats: int = 5) -> CostModel:
    """The constants of a loaded model on this machine, from the least disturbed of `num_repeats` runs.

    Resets the model's prefix cache. Some seconds at 5 repeats with the bundled model.
    """
    num_decodes, prompt_len = 8, 256
    short = decode_step_seconds(llm, (1, num_decodes), num_repeats)
    long = decode_step_seconds(llm, (num_decodes,), num_repeats, prompt_len)
    prefill = min(_run_seconds(llm, 1, prompt_len, 1) for _ in range(num_repeats))
    decode_s = max(0.0, (short[num_decodes] - short[1]) / (num_decodes - 1))
    step_s = max(1e-6, short[1] - decode_s)
    return CostModel(
        source=f"measured on {llm.model_name}, {llm.kernels_name} kernels, {llm.num_threads} threads",
        step_s=step_s,
        prefill_token_s=max(1e-9, (prefill - step_s) / prompt_len),
        decode_s=decode_s,
        context_token_s=max(0.0, (long[num_decodes] - short[num_decodes]) / (num_decodes * (prompt_len - 16))),
    )


def decode_step_seconds(
    llm: LLM, batch_sizes: Sequence[int], num_repeats: int, prompt_len: int = 16
) -> dict[int, float]:
    """Seconds of one step in which so many sequences decode, by their number: what 16 such steps add to a run.

    The sizes take turns, so that a busy machine harms all alike, and the fastest run of each counts. Resets the model's
    prefix cache.
    """
    runs = [(size, output_len) for size in batch_sizes for output_len in (1, 17)]
    fastest = dict.fromkeys(runs, math.inf)
    for _ in range(num_repeats):
        for size, output_len in runs:
            seconds = _run_seconds(llm, size, prompt_len, output_len)
            fastest[size, output_len] = min(seconds, fastest[size, output_len])
    return {size: max(1e-6, (fastest[size, 17] - fastest[size, 1]) / 16) for size in batch_sizes}


def _run_seconds(llm: LLM, num_sequences: int, prompt_len: int, output_len: int) -> float:
    """Seconds of a whole run of prompts that share nothing."""
    llm.reset_prefix_cache()
    prompts = [
        {"prompt_token_ids": [(13 * position + 1009 * idx) % 997 + 3 for position in range(prompt_len)]}
        for idx in range(num_sequences)
    ]
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start
