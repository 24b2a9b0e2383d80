"""EngineObserver: what is seen of an engine between two of its steps, as plain data."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import islice

from ....radix.hot_runs import HotRuns, hot_runs
from ...engine import Engine
from ...metrics import EngineMetrics
from ...sequence import Sequence
from ...trace.record import StepRecord
from ...trace.recorder import TraceRecorder

MAX_STEPS = 400
MAX_SEQUENCES = 100
"""Of those that run, and of those that wait."""
MAX_RUNS = 240
MAX_RUN_TOKENS = 48


@dataclass(frozen=True, slots=True)
class SequenceView:
    """One sequence; see `runtime/sequence.py` for the counts."""

    request_id: str
    sample_idx: int
    label: str | None
    namespace: Hashable
    arrival_time: float
    num_prompt_tokens: int
    num_cached_tokens: int | None
    num_computed_tokens: int
    num_generated_tokens: int
    max_tokens: int
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The blocks of the KV cache. Free, tree and private ones add up to num_blocks."""

    block_size: int
    num_blocks: int
    num_free_blocks: int
    num_tree_blocks: int
    num_private_blocks: int
    num_locked_blocks: int


@dataclass(frozen=True, slots=True)
class EngineView:
    """All that one look has seen.

    Attributes:
        time: on the monotonic clock.
        running, waiting: the first MAX_SEQUENCES of each.
        steps: new ones since the last look.
        cache: None where it was not asked for.
        cache_seconds: how long the engine was held up for that.
    """

    time: float
    metrics: EngineMetrics
    running: tuple[SequenceView, ...]
    waiting: tuple[SequenceView, ...]
    num_running: int
    num_waiting: int
    memory: MemoryView
    steps: tuple[StepRecord, ...]
    cache: HotRuns | None
    cache_seconds: float


class EngineObserver:
    """Records the steps between its first look and `stop`. Belongs to the engine's thread.

    A look costs O(MAX_STEPS + MAX_SEQUENCES), and with the cache what `hot_runs` costs; a recorded step what
    `TraceRecorder.begin` says.
    """

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._recorder: TraceRecorder | None = None
        self._num_seen_steps = 0

    def look(self, engine: Engine, *, is_cache_wanted: bool) -> EngineView:
        """Changes nothing but what is recorded."""
        if self._recorder is None:
            self._recorder = engine.start_trace(self._model_name, MAX_STEPS)
        begin = time.perf_counter()
        cache = hot_runs(engine.cache, MAX_RUNS, MAX_RUN_TOKENS) if is_cache_wanted else None
        cache_seconds = time.perf_counter() - begin
        scheduler = engine.scheduler
        return EngineView(
            time=time.monotonic(),
            metrics=engine.metrics.snapshot(),
            running=_sequence_views(scheduler.running),
            waiting=_sequence_views(scheduler.waiting),
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            memory=_memory_view(engine),
            steps=self._new_steps(self._recorder),
            cache=cache,
            cache_seconds=cache_seconds,
        )

    def stop(self, engine: Engine) -> None:
        """Record no more. Idempotent."""
        if self._recorder is not None:
            engine.stop_trace(self._recorder)
            self._recorder = None

    def _new_steps(self, recorder: TraceRecorder) -> tuple[StepRecord, ...]:
        steps = [step for step in recorder.trace.steps if step.step_idx >= self._num_seen_steps]
        if steps:
            self._num_seen_steps = steps[-1].step_idx + 1
        return tuple(steps)


def _sequence_views(sequences: Iterable[Sequence]) -> tuple[SequenceView, ...]:
    return tuple([_sequence_view(sequence) for sequence in islice(sequences, MAX_SEQUENCES)])


def _sequence_view(sequence: Sequence) -> SequenceView:
    request = sequence.request
    return SequenceView(
        request_id=request.request_id,
        sample_idx=sequence.sample_idx,
        label=request.label,
        namespace=request.cache_namespace,
        arrival_time=request.arrival_time,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_cached_tokens=sequence.num_cached_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        num_generated_tokens=sequence.num_tokens - sequence.num_prompt_tokens,
        max_tokens=sequence.max_tokens,
        num_preemptions=sequence.num_preemptions,
    )


def _memory_view(engine: Engine) -> MemoryView:
    cache = engine.cache
    return MemoryView(
        block_size=cache.block_size,
        num_blocks=cache.num_blocks,
        num_free_blocks=cache.num_free_blocks,
        num_tree_blocks=cache.num_tree_blocks,
        num_private_blocks=cache.num_private_blocks,
        num_locked_blocks=cache.num_tree_blocks - cache.num_evictable_blocks,
    )
