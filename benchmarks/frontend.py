"""What does the language cost per call, with thousands of programs at a time?

    python benchmarks/frontend.py [--programs 2000] [--rounds 3]

Each of 2,000 concurrent programs appends text and asks the mock backend three times for a reply of two tokens; one
thread of the backend answers in order of arrival. Programs:

    async, reading      `async def`, awaits each value before it goes on, with `arun`
    plain, not reading  a plain body that returns before its calls have run, with `arun`
    plain, reading      a plain body that blocks on each value, with `arun`; 48 at a time, in as many threads
    batch, reading      the same with `run_batch`
    batch, journal      the same with a journal: every finished item written, synced and traced

The bare loop sends the same calls to the same backend by itself: tokenise, submit, wait, go on. What a row costs beyond
it, in processor time of the whole process divided by the calls, is the frontend's. Best of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.frontend.async_state import AsyncProgramState
from ramet.frontend.backend import GenerateCall, TextSegment
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.generation import Generation
from ramet.frontend.primitives import gen
from ramet.frontend.program import Program, function
from ramet.frontend.state import ProgramState
from ramet.sampling_params import SamplingParams

NUM_CALLS = 3
QUESTION = "Question {idx}: what comes next? "
REPLY = "ok"


class CountingBackend(MockBackend):
    """Answers from one thread, and notes the most threads there were when a call arrived."""

    def __init__(self) -> None:
        super().__init__(REPLY, mode="background")
        self.max_threads = 0

    def generate(self, call: GenerateCall) -> Generation:
        self.max_threads = max(self.max_threads, threading.active_count())
        return super().generate(call)

    def _remember(self, token_ids: Sequence[int]) -> None:
        """What is cached is not of interest, and the garbage collector would walk over it for everybody."""

    def _remember(self, token_ids: Sequence[int]) -> None:
        """What is cached is not of interest, and the garbage collector would walk over it for everybody."""


@function
async def async_reading(s: AsyncProgramState, idx: int) -> None:
    for number in range(NUM_CALLS):
        s += QUESTION.format(idx=idx) + gen(f"answer{number}", max_tokens=8)
        await s[f"answer{number}"]


@function
def plain_not_reading(s: ProgramState, idx: int) -> None:
    for number in range(NUM_CALLS):
        s += QUESTION.format(idx=idx) + gen(f"answer{number}", max_tokens=8)


@function
def plain_reading(s: ProgramState, idx: int) -> None:
    for number in range(NUM_CALLS):
        s += QUESTION.format(idx=idx) + gen(f"answer{number}", max_tokens=8)
        s[f"answer{number}"]


def bare_loop(backend: MockBackend, num_programs: int) -> None:
    """All programs side by side, without the language."""
    params = SamplingParams(max_tokens=8)
    prompts: list[list[int]] = [[] for _ in range(num_programs)]
    for _ in range(NUM_CALLS):
        running: list[Generation] = []
        for idx, prompt in enumerate(prompts):
            prompt += backend.encode([TextSegment(QUESTION.format(idx=idx))], at_start=not prompt)
            running.append(backend.generate(GenerateCall(tuple(prompt), params)))
        for prompt, generation in zip(prompts, running, strict=True):
            prompt += generation.result().samples[0].kept_token_ids


def together(program: Program) -> Callable[[MockBackend, int], None]:
    def run(backend: MockBackend, num_programs: int) -> None:
        async def main() -> None:
            await asyncio.gather(*[program.arun(idx, backend=backend) for idx in range(num_programs)])

        asyncio.run(main())

    return run


def batch(backend: MockBackend, num_programs: int) -> None:
    plain_reading.run_batch([(idx,) for idx in range(num_programs)], backend=backend, max_concurrency=2000)


def journaled_batch(backend: MockBackend, num_programs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        items = [(idx,) for idx in range(num_programs)]
        plain_reading.run_batch(items, backend=backend, max_concurrency=2000, journal=Path(folder) / "run.jsonl")


ROWS: dict[str, Callable[[MockBackend, int], None]] = {
    "async, reading": together(async_reading),
    "plain, not reading": together(plain_not_reading),
    "plain, reading": together(plain_reading),
    "batch, reading": batch,
    "batch, journal": journaled_batch,
}


@dataclass(frozen=True)
class Cost:
    """Seconds of one run, and the most threads there were, the backend's included."""

    cpu_s: float
    wall_s: float
    num_threads: int


def measure(run: Callable[[MockBackend, int], None], num_programs: int) -> Cost:
    backend = CountingBackend()
    gc.collect()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    run(backend, num_programs)
    cost = Cost(time.process_time() - cpu_s, time.perf_counter() - wall_s, backend.max_threads)
    backend.close()
    assert len(backend.requests) == num_programs * NUM_CALLS
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    num_calls = options.programs * NUM_CALLS
    costs: dict[str, list[Cost]] = {}
    for _ in range(options.rounds):
        for name, run in {"bare loop": bare_loop, **ROWS}.items():
            costs.setdefault(name, []).append(measure(run, options.programs))
    best = {name: min(rounds, key=lambda cost: cost.cpu_s) for name, rounds in costs.items()}
    bare = best.pop("bare loop")
    print(
        f"{options.programs:,} programs of {NUM_CALLS} calls; {platform.machine()}, Python {platform.python_version()}"
    )
    print(f"The bare loop takes {bare.cpu_s / num_calls * 1e6:.0f} us of processor time per call.\n")
    print("| programs | us per call | of the frontend | times the bare loop | calls/s | threads |")
    print("|---|---|---|---|---|---|")
    for name, cost in best.items():
        per_call = cost.cpu_s / num_calls * 1e6
        own = (cost.cpu_s - bare.cpu_s) / num_calls * 1e6
        ratio, rate = cost.cpu_s / bare.cpu_s, num_calls / cost.wall_s
        num_threads = costs[name][0].num_threads  # later rounds find the threads of other rows
        print(f"| {name} | {per_call:.0f} | {own:.0f} | {ratio:.1f} | {rate:,.0f} | {num_threads} |")


if __name__ == "__main__":
    main()
