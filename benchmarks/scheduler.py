"""What does it cost to plan a step for 256 running and 1,024 waiting sequences, by policy?

    python benchmarks/scheduler.py [--policies lpm fcfs ...] [--steps 300]

The prompts are in 64 groups that share 512 tokens each, with 64 to 79 tokens of their own. No model runs: a step is
what the scheduler and the prefix cache do in it, `schedule()` and then `commit` for everybody in the plan. Settings:

    steady      256 decodes, and no place for anybody else
    no room     256 decodes, places enough, and the first of the queue does not fit in the pool
    turnover    in every step one sequence ends, the next is admitted, and another arrives
    deferred    16 prompts are computed piece by piece beside 240 decodes, and all 1,024 wait for one of them

Processor time of the one thread without garbage collections, in microseconds, medians and 99th percentiles over the
steps; "arrival" is the median time that `add` takes for one sequence.
"""

from __future__ import annotations

import argparse
import gc
import platform
import random
import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast

from ramet.radix import PrefixCache
from ramet.runtime.config import EngineConfig
from ramet.runtime.policies.registry import SCHEDULE_POLICIES
from ramet.runtime.request import Request
from ramet.runtime.scheduler import Scheduler
from ramet.runtime.sequence import Sequence
from ramet.sampling_params import SamplingParams

NUM_RUNNING, NUM_WAITING = 256, 1_024
NUM_GROUPS, SHARED_LEN, OWN_LEN, OUTPUT_LEN = 64, 512, 64, 4_096
NUM_WARM_STEPS = 20
BLOCK_SIZE = 16


@dataclass
class Times:
    """Seconds, one entry a step, and one an arrival."""

    schedule: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    arrival: list[float] = field(default_factory=list)


class Bench:
    """A scheduler, and the part of an engine that moves its sequences on."""

    def __init__(self, policy: str, num_blocks: int, **options: Any) -> None:
        self.cache = PrefixCache(num_blocks, BLOCK_SIZE)
        self.scheduler = Scheduler(
            EngineConfig(seed=0, schedule_policy=policy, schedule_conservativeness=0.0, **options), self.cache
        )
        self.times = Times()
        self._random = random.Random(0)
        self._arrivals = count()
        self.prefixes = [self.tokens(SHARED_LEN) for _ in range(NUM_GROUPS)]

    def tokens(self, num_tokens: int) -> list[int]:
        return [self._random.randrange(49_152) for _ in range(num_tokens)]

    def own_tokens(self) -> list[int]:
        return self.tokens(OWN_LEN + self._random.randrange(BLOCK_SIZE))

    def add(self, prompt: list[int], group: int) -> Sequence:
        request = Request(
            request_id=str(group),
            prompt_token_ids=tuple(prompt),
            sampling_params=SamplingParams(max_tokens=OUTPUT_LEN - self._random.randrange(1_000)),
            priority=self._random.randrange(3),
            routing_key=str(group),
        )
        sequence = Sequence(
            request=request,
            sample_idx=0,
            arrival_idx=next(self._arrivals),
            max_tokens=request.sampling_params.max_tokens or 0,
            seed=0,
            stop_token_ids=frozenset(),
            detokenizer=cast(Any, None),
        )
        began = time.thread_time()
        self.scheduler.add(sequence)
        self.times.arrival.append(time.thread_time() - began)
        return sequence

    def add_member(self, group: int) -> Sequence:
        return self.add(self.prefixes[group % NUM_GROUPS] + self.own_tokens(), group % NUM_GROUPS)

    def step(self) -> None:
        began = time.thread_time()
        batch = self.scheduler.schedule()
        planned = time.thread_time()
        for part in batch.scheduled:
            table = part.sequence.block_table
            assert table is not None
            self.cache.commit(table, part.end)
        committed = time.thread_time()
        self.times.schedule.append(planned - began)
        self.times.commit.append(committed - planned)
        for part in batch.scheduled:
            if part.is_sampled:
                part.sequence.token_ids.append(self._random.randrange(49_152))

    def run_until(self, num_running: int) -> None:
        """Admit and compute until so many decode."""
        while len(self.scheduler.running) < num_running or any(
            sequence.num_uncomputed_tokens > 1 for sequence in self.scheduler.running
        ):
            self.step()


def running_bench(policy: str, num_running: int, num_blocks: int, **options: Any) -> Bench:
    bench = Bench(policy, num_blocks, max_num_batched_tokens=8_192, **options)
    for idx in range(num_running):
        bench.add_member(idx)
    bench.run_until(num_running)
    return bench


def steady(policy: str, num_steps: int) -> Times:
    bench = running_bench(policy, NUM_RUNNING, 40_000, max_num_seqs=NUM_RUNNING)
    return _measured(bench, num_steps, waiting=range(NUM_WAITING))


def no_room(policy: str, num_steps: int) -> Times:
    bench = running_bench(policy, NUM_RUNNING, 40_000, max_num_seqs=2 * NUM_RUNNING)
    bench.scheduler.admission.has_room = lambda *_: False  # type: ignore[method-assign]
    return _measured(bench, num_steps, waiting=range(NUM_WAITING))


def turnover(policy: str, num_steps: int) -> Times:
    bench = running_bench(policy, NUM_RUNNING, 40_000, max_num_seqs=NUM_RUNNING)

    def between(step_idx: int) -> None:
        bench.scheduler.remove(bench.scheduler.running[0])
        bench.add_member(step_idx * 7)

    return _measured(bench, num_steps, waiting=range(NUM_WAITING), between=between)


def deferred(policy: str, num_steps: int) -> Times:
    num_prompts = 16
    bench = running_bench(
        policy,
        NUM_RUNNING - num_prompts,
        60_000,
        max_num_seqs=2 * NUM_RUNNING,
        long_prefill_token_threshold=BLOCK_SIZE,
    )
    bench.prefixes = [bench.tokens((num_steps + 100) * BLOCK_SIZE) for _ in range(num_prompts)]
    for idx in range(num_prompts):
        bench.add(bench.prefixes[idx] + bench.own_tokens(), idx)
    bench.step()
    for idx in range(NUM_WAITING):
        bench.add(bench.prefixes[idx % num_prompts] + bench.own_tokens(), idx % num_prompts)
    times = _measured(bench, num_steps, waiting=())
    assert len(bench.scheduler.waiting) == NUM_WAITING
    return times


def _measured(
    bench: Bench,
    num_steps: int,
    waiting: range | tuple[int, ...],
    between: Callable[[int], None] = lambda step_idx: None,
) -> Times:
    for idx in waiting:
        bench.add_member(idx)
    for step_idx in range(NUM_WARM_STEPS + num_steps):
        if step_idx == NUM_WARM_STEPS:
            bench.times.schedule.clear()
            bench.times.commit.clear()
        between(step_idx)
        bench.step()
    return bench.times


SETTINGS = {"steady": steady, "no room": no_room, "turnover": turnover, "deferred": deferred}


def yardstick() -> float:
    """Seconds for a loop of 10,000 additions, the fastest of 20: to compare figures of different machines and days."""
    loop = "total = 0\nfor number in range(10_000):\n    total += number"
    return min(timeit.repeat(loop, number=1, repeat=20, timer=time.thread_time))


def cells(values: list[float]) -> Iterator[str]:
    yield f"{statistics.median(values) * 1e6:.0f}"
    yield f"{sorted(values)[int(0.99 * (len(values) - 1))] * 1e6:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of planning a step, by policy.")
    parser.add_argument("--policies", nargs="+", choices=SCHEDULE_POLICIES, default=list(SCHEDULE_POLICIES))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    gc.disable()
    print(f"{NUM_RUNNING} running, {NUM_WAITING:,} waiting; {platform.machine()}, Python {platform.python_version()}")
    print(f"10,000 additions in a loop take {yardstick() * 1e6:.0f} us here and now\n")
    print("| setting | policy | schedule | p99 | commit | p99 | both | p99 | arrival |")
    print("|---|---|---|---|---|---|---|---|---|")
    for setting in args.settings:
        for policy in args.policies:
            gc.collect()
            times = SETTINGS[setting](policy, args.steps)
            both = [schedule + commit for schedule, commit in zip(times.schedule, times.commit, strict=True)]
            row = [*cells(times.schedule), *cells(times.commit), *cells(both), next(cells(times.arrival))]
            print(f"| {setting} | {policy} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
