"""What does the host do in a step beside the model, and how long does it take?

    python -m benchmarks.host [--batch 1 32 256] [--sampler native numpy] [--context 128] [--step-ms 0]

A runner that returns canned logits at once stands in for the model, so a step is only what the engine, the cache, the
sampler, the detokenizer and the engine's thread add to it. All sequences decode. The figures are medians over the steps
in microseconds; `--quantile` takes another share of them, for a machine that does other work too. "loop" is what lies
between two steps: handing chunks to the handles and looking for messages.

With "streams" one thread a request reads its chunks while the steps go on; `--step-ms` then gives them the time that a
model would (the runner sleeps), which is what they have in real life.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ramet.kernels.cpu.loader import load_cpu_library
from ramet.kernels.cpu.sampling import SamplingKernels
from ramet.runtime.batch import Batch
from ramet.runtime.config import EngineConfig, cache_dir, default_num_threads
from ramet.runtime.engine import Engine
from ramet.runtime.engine_loop import EngineLoop, RequestHandle
from ramet.runtime.metrics import PHASES, EngineMetrics
from ramet.runtime.request import Request
from ramet.runtime.sampler import Sampler
from ramet.runtime.sampler_native import NativeSampler
from ramet.runtime.sampler_numpy import NumpySampler
from ramet.runtime.tokenizer import Tokenizer, load_tokenizer
from ramet.runtime.weights.resolve import resolve_model
from ramet.sampling_params import SamplingParams

VOCAB_SIZE = 49_152
NUM_WARM_STEPS = 20
COLUMNS = ("step", *(phase for phase in PHASES if phase != "forward"), "loop")

REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy, streams": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
    "top-k 40, top-p": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    "greedy, logprobs 5": {"temperature": 0.0, "logprobs": 5},
    "penalties": {"temperature": 0.8, "top_p": 0.95, "presence_penalty": 0.5, "repetition_penalty": 1.1},
}


class CannedRunner:
    """Returns the same logits in every step and notes when it was called."""

    vocab_size = VOCAB_SIZE
    block_size = 16
    captured_batch_sizes: tuple[int, ...] = ()
    can_run_ahead = False

    def __init__(self, max_rows: int, num_blocks: int, step_seconds: float) -> None:
        self.num_blocks = num_blocks
        self.metrics: EngineMetrics | None = None
        self.gaps: list[float] = []
        self.phases: list[dict[str, float]] = []
        self._logits = canned_logits(max_rows)
        self._step_seconds = step_seconds
        self._returned = 0.0

    def prepare(self, batch: Batch) -> Callable[[], Tensor]:
        return lambda: self.forward(batch)

    def forward(self, batch: Batch) -> Tensor:
        if all(part.num_new_tokens == 1 for part in batch.scheduled):
            assert self.metrics is not None
            self.gaps.append(time.perf_counter() - self._returned)
            self.phases.append(dict(self.metrics.phase_seconds))
        num_rows = sum(part.num_logit_rows for part in batch.scheduled)
        if self._step_seconds:
            time.sleep(self._step_seconds)
        self._returned = time.perf_counter()
        return self._logits[:num_rows]


def canned_logits(num_rows: int) -> Tensor:
    """Logits as a language model's: of the r-th likeliest token about -1.5 ln(r), in an order of each row's own."""
    generator = torch.Generator().manual_seed(0)
    by_rank = -1.5 * torch.arange(1, VOCAB_SIZE + 1).log() + 10
    rows = [by_rank[torch.randperm(VOCAB_SIZE, generator=generator)] for _ in range(num_rows)]
    return torch.stack(rows) + 0.5 * torch.randn(num_rows, VOCAB_SIZE, generator=generator)


def requests_of(name: str, batch_size: int, context_len: int, num_steps: int) -> list[Request]:
    params = SamplingParams(max_tokens=num_steps, ignore_eos=True, seed=1, **REQUESTS[name])
    return [
        Request(
            request_id=f"{name}-{idx}",
            prompt_token_ids=tuple((idx * 31 + position * 7) % VOCAB_SIZE for position in range(context_len)),
            sampling_params=params,
        )
        for idx in range(batch_size)
    ]


def drain(handle: RequestHandle) -> None:
    for _ in handle.stream():
        pass


def run(engine: Engine, requests: list[Request], has_streams: bool) -> None:
    loop = EngineLoop(engine)
    handles = loop.submit_many(requests)
    readers = [threading.Thread(target=drain, args=(handle,)) for handle in handles] if has_streams else []
    for reader in readers:
        reader.start()
    for handle in handles:
        handle.result()
    for reader in readers:
        reader.join()
    loop.shutdown()


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def native_sampler() -> Sampler:
    library = load_cpu_library(None, cache_dir(), None, print)
    return NativeSampler(SamplingKernels(library.cdll, default_num_threads()))


SAMPLERS: dict[str, Callable[[], Sampler]] = {"native": native_sampler, "numpy": NumpySampler}


def measure(tokenizer: Tokenizer, sampler: Sampler, name: str, batch_size: int, args: argparse.Namespace) -> list[str]:
    runner = CannedRunner(batch_size, batch_size * (-(-(args.context + args.steps) // 16) + 1), args.step_ms * 1e-3)
    config = EngineConfig(seed=0, max_num_seqs=batch_size, max_num_batched_tokens=max(2048, batch_size * args.context))
    engine = Engine(config, runner, tokenizer, max_model_len=8192, sampler=sampler)
    runner.metrics = engine.metrics
    run(engine, requests_of(name, batch_size, args.context, args.steps), "streams" in name)
    steps = [
        split_gap(gap, before, after)
        for gap, (before, after) in zip(runner.gaps[1:], itertools.pairwise(runner.phases), strict=True)
    ][NUM_WARM_STEPS:]
    return [f"{quantile([step[column] for step in steps], args.quantile) * 1e6:.0f}" for column in COLUMNS]


def split_gap(gap: float, before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What the time between two calls of the runner went into; the phases' times stood at `before` and `after`."""
    parts = {phase: after[phase] - before[phase] for phase in PHASES if phase != "forward"}
    return {"step": gap, **parts, "loop": gap - sum(parts.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description="Host time of a decoding step, by phase.")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--sampler", nargs="+", choices=SAMPLERS, default=["native"])
    parser.add_argument("--requests", nargs="+", choices=REQUESTS, default=list(REQUESTS))
    parser.add_argument("--context", type=int, default=128, help="prompt tokens of each sequence")
    parser.add_argument("--steps", type=int, default=120, help="tokens each sequence generates")
    parser.add_argument("--quantile", type=float, default=0.5, help="which of the steps' times is shown, 0 to 1")
    parser.add_argument("--step-ms", type=float, default=0.0, help="what the model would take, spent asleep")
    args = parser.parse_args()
    tokenizer = load_tokenizer(resolve_model("smollm2").tokenizer_source)
    samplers = {name: SAMPLERS[name]() for name in args.sampler}
    machine = f"{platform.machine()}, {default_num_threads()} threads, Python {platform.python_version()}"
    print(f"Vocabulary of {VOCAB_SIZE}, {machine}; microseconds\n")
    print(f"| sampler | sequences | requests | {' | '.join(COLUMNS)} |")
    print(f"|---|---|---|{'---|' * len(COLUMNS)}")
    for sampler_name, batch_size, requests in itertools.product(samplers, args.batch, args.requests):
        cells = measure(tokenizer, samplers[sampler_name], requests, batch_size, args)
        print(f"| {sampler_name} | {batch_size} | {requests} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
