"""What the Sarathi-Serve figures share: its ways of scheduling, its workload, and the times between tokens of a run."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from .cost_model import CostModel, roofline
from .lengths import poisson_times, random_prompt
from .simulation import Arrival, RequestRecord, Simulation, simulated_request

BLOCK_SIZE = 16
MAX_CONTEXT_LEN = 8192
MAX_NUM_SEQS = 64

A100_MISTRAL_7B = roofline(
    "arithmetic for Mistral-7B on an A100: 1.5 TB/s and 200 TFLOP/s reached, 0.13 MB of KV a token",
    num_parameters=7.2e9,
    kv_bytes_per_token=0.131e6,
    bytes_per_s=1.5e12,
    flops_per_s=200e12,
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A way to schedule prompts among decodes.

    Attributes:
        name: for tables.
        num_tokens: most tokens in a step.
    """

    name: str
    batching: Literal["continuous", "prefill-first"]
    num_tokens: int


PREFILL_FIRST = Schedule("prefill-first", "prefill-first", MAX_CONTEXT_LEN)
"""What servers did before: whole prompts, while decodes wait."""


def chunked(num_tokens: int) -> Schedule:
    """Decodes in every step, and prompts in chunks of what is left of `num_tokens`."""
    return Schedule(f"chunked, {num_tokens} tokens a step", "continuous", num_tokens)


@dataclass(frozen=True, slots=True)
class PercentileLengths:
    """Log-normal lengths by their median and 90th percentile, in tokens."""

    median: float
    p90: float

    def sample(self, rng: random.Random) -> int:
        """At least 1 token; may be any number."""
        sigma = math.log(self.p90 / self.median) / 1.2816  # the 90th percentile of a standard normal
        return max(1, round(rng.lognormvariate(math.log(self.median), sigma)))


PROMPT_LENS = PercentileLengths(1730, 5696)
OUTPUT_LENS = PercentileLengths(415, 834)
"""openchat_sharegpt4, table 2 of the Sarathi-Serve paper."""


def arrivals(num_requests: int, rate_per_s: float, seed: int, shrink: int = 1) -> Iterable[Arrival]:
    """Requests of the paper's chat workload, at most MAX_CONTEXT_LEN long, as a Poisson process. The same seed gives
    the same requests at every rate; `shrink` divides all lengths."""
    rng = random.Random(seed)
    times_s = islice(poisson_times(rate_per_s, random.Random(seed + 1)), num_requests)
    for idx, time_s in enumerate(times_s):
        prompt_len = output_len = MAX_CONTEXT_LEN
        while prompt_len + output_len > MAX_CONTEXT_LEN:
            prompt_len, output_len = PROMPT_LENS.sample(rng), OUTPUT_LENS.sample(rng)
        prompt = random_prompt(-(-prompt_len // shrink), rng)
        yield Arrival(time_s, simulated_request(f"request {idx}", prompt, -(-output_len // shrink)))


def serve(schedule: Schedule, cost_model: CostModel, requests: Iterable[Arrival]) -> Simulation:
    """Run the requests to their end, with room for all and no prefix cache."""
    simulation = Simulation(
        cost_model,
        num_blocks=MAX_NUM_SEQS * MAX_CONTEXT_LEN // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=schedule.num_tokens,
        batching=schedule.batching,
        schedule_policy="fcfs",
        enable_prefix_caching=False,
    )
    simulation.run(requests)
    return simulation


def times_between_tokens(records: Iterable[RequestRecord]) -> list[float]:
    """Of all requests together, in seconds."""
    return [gap for record in records for gap in record.times_between_tokens_s]


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed, by interpolation. 0 where there are none."""
    return float(np.percentile(values, percent)) if values else 0.0


def median_queueing_s(simulation: Simulation) -> float:
    """Median time from arrival to the start of the first step that computes something of a request, over the later
    half of the requests: an overload shows late."""
    starts: dict[str, float] = {}
    for step in simulation.steps:
        for part in step.parts:
            starts.setdefault(part.request_id, step.start_s)
    records = list(simulation.records.values())
    waits = [starts[record.request.request_id] - record.arrival_s for record in records[len(records) // 2 :]]
    return percentile(waits, 50)
