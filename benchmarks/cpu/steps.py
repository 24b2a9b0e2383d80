"""Job: single steps of our own runner, and what the engine adds to them.

A step is `Runner.forward` on a batch like the engine's, with the caches as they would be. The same step is run again
and again: it writes the same slots, so the state does not change.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch

from ramet import LLM, SamplingParams
from ramet.radix.block_table import BlockTable
from ramet.radix.prefix_cache import PrefixCache
from ramet.runtime.batch import Batch, ScheduledSequence
from ramet.runtime.config import EngineConfig
from ramet.runtime.runner import Runner
from ramet.runtime.runner_factory import RunnerSpec, build_runner, runner_candidates
from ramet.runtime.weights.resolve import resolve_model

BLOCK_SIZE = 16
NUM_BLOCKS = 1024
FIRST_TOKEN_ID = 1000


@dataclass(frozen=True)
class StepShape:
    """Attributes:
    num_sequences: sequences in the step.
    shared_len: tokens that all of them begin with, computed before.
    own_len: tokens of each behind those, computed before.
    num_new_tokens: tokens of each that the step computes.
    """

    name: str
    num_sequences: int
    shared_len: int
    own_len: int
    num_new_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_sequences * self.num_new_tokens


@dataclass(frozen=True)
class StepSequence:
    """What a runner reads of a sequence."""

    token_ids: list[int]
    block_table: BlockTable

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_computed_tokens(self) -> int:
        return self.block_table.num_computed_tokens


STEPS = (
    StepShape("decode, batch 1, context 128", 1, 0, 127, 1),
    StepShape("decode, batch 8, context 128", 8, 0, 127, 1),
    StepShape("decode, batch 32, context 128", 32, 0, 127, 1),
    StepShape("decode, batch 32, shared 1,024 + 16", 32, 1024, 15, 1),
    StepShape("prefill 512", 1, 0, 0, 512),
    StepShape("prefill 2,048", 1, 0, 0, 2048),
    StepShape("64 x 32 behind 1,024", 64, 1024, 0, 32),
)


def run(options: dict[str, Any]) -> dict[str, Any]:
    """Options: `gguf`, `threads`, `kernels`, `seconds` a step."""
    torch.set_num_threads(options["threads"])
    runner = load_runner(options)
    steps = {shape.name: measure_step(runner, shape, options["seconds"]) for shape in STEPS}
    del runner
    with LLM(
        options["gguf"], num_threads=options["threads"], kernels=options.get("kernels"), show_progress=False
    ) as llm:
        host = {str(batch_size): measure_host(llm, batch_size, options["seconds"]) for batch_size in (1, 32)}
        return {"steps": steps, "host": host, "kernels": llm.kernels_name}


def load_runner(options: dict[str, Any]) -> Runner:
    spec = RunnerSpec(
        checkpoint=resolve_model(options["gguf"]),
        config=EngineConfig(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS),
        device="cpu",
        num_threads=options["threads"],
    )
    return build_runner(runner_candidates(options.get("kernels"), "cpu"), spec).runner


def measure_step(runner: Runner, shape: StepShape, seconds: float) -> dict[str, float]:
    """Best and median seconds, and the tokens of the step."""
    batch = make_batch(runner, shape)
    best, median = _timed(lambda: runner.forward(batch), seconds)
    return {"best": best, "median": median, "num_tokens": shape.num_tokens}


def make_batch(runner: Runner, shape: StepShape) -> Batch:
    """The step's batch, everything before it computed."""
    cache = PrefixCache(runner.num_blocks, runner.block_size)
    shared = [_token_id(runner, position) for position in range(shape.shared_len)]
    if shared:
        sequence = _start(cache, shared)
        _compute(cache, runner, [sequence], len(shared))
    own_len = shape.own_len + shape.num_new_tokens
    sequences = [
        _start(cache, shared + [_token_id(runner, 7919 * (idx + 1) + position) for position in range(own_len)])
        for idx in range(shape.num_sequences)
    ]
    if shape.own_len:
        _compute(cache, runner, sequences, shape.shared_len + shape.own_len)
    assert all(sequence.num_computed_tokens == shape.shared_len + shape.own_len for sequence in sequences)
    return Batch(scheduled=[_part(sequence, shape.num_new_tokens) for sequence in sequences])


def _token_id(runner: Runner, seed: int) -> int:
    return FIRST_TOKEN_ID % runner.vocab_size + seed * 31 % (runner.vocab_size - FIRST_TOKEN_ID % runner.vocab_size)


def _start(cache: PrefixCache, token_ids: list[int]) -> StepSequence:
    match = cache.match(token_ids, max_tokens=len(token_ids) - 1)
    acquired = cache.acquire(token_ids, match, len(token_ids))
    assert acquired is not None, "the step needs more blocks than there are"
    block_table, copies = acquired
    assert not copies
    return StepSequence(token_ids, block_table)


def _compute(cache: PrefixCache, runner: Runner, sequences: list[StepSequence], end: int) -> None:
    """Compute each sequence up to `end`."""
    for sequence in sequences:
        part = _part(sequence, end - sequence.num_computed_tokens)
        runner.forward(Batch(scheduled=[part]))
        cache.commit(sequence.block_table, part.end)


def _part(sequence: StepSequence, num_new_tokens: int) -> ScheduledSequence:
    return ScheduledSequence(
        cast(Any, sequence), sequence.num_computed_tokens, num_new_tokens, logits_from=num_new_tokens - 1
    )


def measure_host(llm: LLM, batch_size: int, seconds: float, num_steps: int = 64) -> dict[str, float]:
    """Greedy decoding by `LLM.generate`: seconds a step, what of it is not the forward pass, and by phase.

    The first step of a call computes the prompts: they are of one token.
    """
    params = SamplingParams(temperature=0.0, max_tokens=num_steps, ignore_eos=True)
    prompts = [{"prompt_token_ids": [FIRST_TOKEN_ID + idx]} for idx in range(batch_size)]
    runs: list[dict[str, float]] = []
    end = time.perf_counter() + seconds
    while len(runs) < 4 or time.perf_counter() < end:
        llm.reset_prefix_cache()
        before = llm.metrics()
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        duration = time.perf_counter() - start
        after = llm.metrics()
        steps = after.num_steps - before.num_steps
        phases = {
            name: (after.phase_seconds[name] - before.phase_seconds[name]) / steps for name in after.phase_seconds
        }
        runs.append({"step": duration / steps, "host": duration / steps - phases["forward"], **phases})
    return min(runs[1:], key=lambda one: one["step"])


def _timed(work: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Best and median of the runs that fit into so many seconds, of five at least."""
    work()
    durations: list[float] = []
    end = time.perf_counter() + seconds
    while len(durations) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return min(durations), statistics.median(durations)
