"""Programs on an engine that keeps track of them: the same values, more kept, and nothing left behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ramet import LLM, LocalBackend
from ramet.frontend.capture.tracer import cache_prefix
from ramet.frontend.errors import GenerationError
from ramet.frontend.primitives import gen, select
from ramet.frontend.program import function
from ramet.frontend.run_context import RunContext
from ramet.frontend.scope import Scope
from ramet.frontend.state import ProgramState

pytestmark = pytest.mark.model

NUM_BLOCKS = 24
"""Room for some of the programs below, not for all."""


@pytest.fixture(scope="module")
def aware_backend() -> Iterator[LocalBackend]:
    options = {"schedule_policy": "program", "eviction_policy": "steps-to-execution", "keep_open_programs": True}
    with (
        LLM("smollm2", num_blocks=NUM_BLOCKS, check_invariants=True, show_progress=False, **options) as llm,
        LocalBackend(llm) as backend,
    ):
        yield backend


def num_open_programs(backend: LocalBackend) -> tuple[int, int]:
    """How many the engine knows, and how many prefixes its cache expects, after all that was told before."""
    return backend.llm._loop.call(lambda engine: (len(engine.scheduler.programs), len(engine.cache.expectations)))


@function
def research(s: ProgramState, topic: str, num_branches: int) -> None:
    s += f"About {topic}. " * 6 + "In short:" + gen("short", max_tokens=3, temperature=0.0)
    branches = s.fork(num_branches)
    branches += [f" {idx}." + gen("fact", max_tokens=3, temperature=0.0) for idx in range(num_branches)]
    s += f" So {branches.join()['fact'][0]}" + gen("end", max_tokens=2, temperature=0.0)
    s.expect_call(after=2)
    s += select("mood", choices=[" good", " bad"], method="unconditional_likelihood_normalized")


ITEMS = [{"topic": topic, "num_branches": 1 + idx % 3} for idx, topic in enumerate(("tea", "rain", "iron", "tea"))]


def test_values_are_those_of_an_engine_that_knows_nothing(backend: LocalBackend, aware_backend: LocalBackend) -> None:
    plain, aware = (
        [
            (state["short"], state["fact"], state["end"], state["mood"])
            for state in research.run_batch(ITEMS, backend=each)
        ]
        for each in (backend, aware_backend)
    )
    assert plain == aware
    assert num_open_programs(aware_backend) == (0, 0)


def test_nothing_is_left_of_programs_that_fail_are_cancelled_or_dropped(aware_backend: LocalBackend) -> None:
    @function
    def fails(s: ProgramState) -> None:
        s += "a" * 40 + gen("x", max_tokens=3)
        s.sync()
        s += "b" * 100_000 + gen("y")

    with pytest.raises(GenerationError):
        fails.run(backend=aware_backend)["y"]

    @function
    def raises(s: ProgramState) -> None:
        s += "a" * 40 + gen("x", max_tokens=30)
        raise RuntimeError("broken")

    raises.run(backend=aware_backend, on_error="return").sync()

    @function
    def long(s: ProgramState) -> None:
        s += "c" * 40 + gen("x", max_tokens=60, ignore_eos=True) + gen("y", max_tokens=60)

    state = long.run(backend=aware_backend)
    state.cancel()
    state.sync()
    scope = Scope(RunContext("dropped", aware_backend, {}))
    dropped = ProgramState(scope)
    dropped += "d" * 40 + gen("x", max_tokens=3)
    dropped.sync()
    assert num_open_programs(aware_backend)[0] == 1
    del scope, dropped
    gc.collect()
    assert num_open_programs(aware_backend) == (0, 0)


def test_a_program_that_goes_on_keeps_its_prefix_through_others(aware_backend: LocalBackend) -> None:
    words = "one two three four five six seven eight nine ten " * 3

    @function
    def agent(s: ProgramState, num_others: int) -> None:
        s += "The agent's own notes: " + words + gen("x", max_tokens=2, temperature=0.0, ignore_eos=True)
        s.sync()
        for idx in range(num_others):
            noise.run(f"{idx} {idx + 1} {idx + 2} " * 20, backend=aware_backend).sync()
        s += " and then" + gen("y", max_tokens=2, temperature=0.0)

    @function
    def noise(s: ProgramState, text: str) -> None:
        s += text + gen("x", max_tokens=1)

    meta = agent.run(6, backend=aware_backend).meta("y")
    assert meta.num_computed_tokens <= 4
    assert aware_backend.llm._loop.call(lambda engine: engine.cache.stats.num_evicted_blocks) > NUM_BLOCKS


def test_the_constant_prefix_is_computed_ahead(aware_backend: LocalBackend) -> None:
    aware_backend.flush_cache()
    graph = research.bind(topic="snow").trace(num_branches=1, backend=aware_backend)
    assert graph.is_complete
    num_tokens = cache_prefix(graph, aware_backend)
    assert num_tokens == graph.num_prefix_tokens
    meta = research.run("snow", 1, backend=aware_backend).meta("short")
    assert meta.num_cached_tokens >= num_tokens - 1
