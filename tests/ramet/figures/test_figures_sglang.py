"""What the SGLang figures rest on: policies to compare with, and a stopwatch for the cache."""

from __future__ import annotations

import random

import pytest

from ramet.figures import sglang_long_queue, sglang_starvation
from ramet.figures.comparison_policies import MAX_LOOKUPS, LookupLimited, UnagedLongestPrefixMatch
from ramet.figures.sglang_hit_rate import UNBOUNDED, simulate
from ramet.figures.sglang_long_queue import prompts_of
from ramet.figures.sglang_programs import program_batches
from ramet.figures.sglang_starvation import NUM_SLOTS, NUM_WAITING, num_overtaking
from ramet.figures.sglang_tree_overhead import Stopwatch, time_cache
from ramet.figures.workloads import WORKLOADS, Workload
from ramet.radix.prefix_cache import PrefixCache
from ramet.runtime.policies.fcfs import FirstComeFirstServed
from ramet.runtime.policies.lpm import LongestPrefixMatch

NUM_HOT = 300


def test_without_aging_everybody_overtakes_the_cold_request() -> None:
    unaged = num_overtaking(sglang_starvation.serve(UnagedLongestPrefixMatch(), NUM_HOT))
    aged = num_overtaking(sglang_starvation.serve(LongestPrefixMatch(), NUM_HOT))

    assert unaged >= NUM_HOT - NUM_HOT // 10 - NUM_SLOTS
    assert aged < unaged / 2


def test_in_order_of_arrival_nobody_overtakes() -> None:
    simulation = sglang_starvation.serve(FirstComeFirstServed(), NUM_HOT)

    assert num_overtaking(simulation) == 0
    assert len(simulation.records) == NUM_HOT + 1
    assert max(len(step.parts) for step in simulation.steps) == NUM_SLOTS
    assert NUM_WAITING > 0


def test_a_limit_on_lookups_costs_hits_only_where_more_wait() -> None:
    short, long = prompts_of(MAX_LOOKUPS // 2), prompts_of(2 * MAX_LOOKUPS)

    rate = sglang_long_queue.hit_rate
    assert rate(LookupLimited(), short) == rate(LongestPrefixMatch(), short)
    assert rate(LookupLimited(), long) < rate(LongestPrefixMatch(), long)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_no_small_pool_hits_more_than_an_unbounded_one(workload: Workload) -> None:
    unbounded, records = simulate(workload, 24, UNBOUNDED, LongestPrefixMatch())
    small, same_records = simulate(workload, 24, unbounded.engine.cache.num_tree_blocks // 2, LongestPrefixMatch())

    assert unbounded.engine.cache.stats.num_evicted_blocks == 0
    assert small.engine.cache.stats.num_evicted_blocks > 0
    assert len(records) == len(same_records)
    assert 0 < small.engine.metrics.cache_hit_rate <= unbounded.engine.metrics.cache_hit_rate


def test_a_stopwatch_counts_a_call_inside_another_one_once() -> None:
    stopwatch = Stopwatch()
    inner = stopwatch.timed("inner", lambda: 7)
    outer = stopwatch.timed("outer", lambda: inner() + 1)

    assert outer() == 8
    assert inner() == 7
    assert stopwatch.num_calls == {"inner": 1, "outer": 1}
    assert min(stopwatch.seconds.values()) > 0.0


def test_a_stopwatch_stops_where_a_call_raises() -> None:
    stopwatch = Stopwatch()

    def fail() -> None:
        raise KeyError("no")

    failing = stopwatch.timed("fail", fail)
    for _ in range(2):
        with pytest.raises(KeyError):
            failing()
    assert stopwatch.num_calls == {"fail": 2}


def test_a_timed_cache_works_as_before() -> None:
    cache = PrefixCache(8, 4)
    stopwatch = time_cache(cache)
    prompt = random.Random(0).choices(range(100), k=8)
    opened = cache.acquire(prompt, cache.match(prompt), len(prompt))
    assert opened is not None
    cache.commit(opened[0], len(prompt))
    cache.release(opened[0])

    assert cache.match(prompt).num_tokens == 8
    assert stopwatch.num_calls["match"] == 2
    assert stopwatch.num_calls["acquire"] == stopwatch.num_calls["commit"] == stopwatch.num_calls["release"] == 1


def test_programs_are_limited_in_items_and_turns() -> None:
    batches = program_batches(0.1, num_turns=2, max_items=3)

    assert all(1 <= len(batch.items) <= 3 for batch in batches)
    assert {len(batch.items[0]["questions"]) for batch in batches if "questions" in batch.items[0]} == {2}
