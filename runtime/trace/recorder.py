"""TraceRecorder: watches an engine and writes a StepRecord for each of its steps."""

from __future__ import annotations

import json
import platform
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import islice

from ...radix.prefix_cache import PrefixCache
from ..batch import Batch, ScheduledSequence
from ..config import EngineConfig
from ..errors import InvalidConfigError
from ..scheduler import Scheduler
from ..sequence import Sequence
from .record import (
    MAX_NAMED_WAITING,
    FinishedSequence,
    MemoryRecord,
    SequenceName,
    StepRecord,
    TracedPart,
    TraceMetadata,
)
from .trace import Trace


@dataclass(slots=True)
class _BegunStep:
    """A step whose results are still to come. The engine may plan the next one before it has them."""

    batch: Batch
    record: StepRecord


class TraceRecorder:
    """The engine calls `begin` when it has planned a step and `end` when its results are complete.

    Not thread-safe: it belongs to the engine's thread. `trace` may be read between two steps.

    Args:
        model: its name, kept with the trace.
        config: the engine's options, kept with the trace.
        phase_seconds: the engine's phase times so far, if it ran before; the first record counts from there.
        max_num_steps: keep only that many steps, the last ones; None keeps all. A step takes some 100 bytes for each
            sequence that ran or waited.

    Raises:
        InvalidConfigError: max_num_steps is less than one.
    """

    def __init__(
        self,
        model: str,
        config: EngineConfig,
        phase_seconds: Mapping[str, float] | None = None,
        max_num_steps: int | None = None,
    ) -> None:
        if max_num_steps is not None and (not isinstance(max_num_steps, int) or max_num_steps < 1):
            raise InvalidConfigError(
                f"max_num_steps={max_num_steps!r} is not allowed: keep at least 1, or None for all; save_timeline and "
                "save_jsonl take the name of a file"
            )
        self.metadata = TraceMetadata(
            model=model,
            options=json.loads(json.dumps(asdict(config))),  # as they are read back from a file
            versions={"ramet": version("ramet"), "torch": version("torch"), "python": platform.python_version()},
        )
        self._steps: deque[StepRecord] = deque(maxlen=max_num_steps)
        self._begun: list[_BegunStep] = []
        self._num_begun = 0
        self._phase_seconds = dict(phase_seconds or {})
        self._live: dict[Sequence, SequenceName] = {}

    @property
    def trace(self) -> Trace:
        """All steps whose results are complete; a copy."""
        return Trace(self.metadata, list(self._steps))

    def begin(self, batch: Batch, scheduler: Scheduler, cache: PrefixCache) -> None:
        """A step was planned and nothing of it is committed yet; `end` must be called for it.

        Cost: O(sequences scheduled, running and waiting), whatever their length.
        """
        for sequence in scheduler.running:
            self._name(sequence)
        for sequence in scheduler.waiting:
            self._name(sequence)
        admitted = set(batch.admitted)
        record = StepRecord(
            step_idx=self._num_begun,
            start_time=time.monotonic(),
            phase_seconds={},
            parts=tuple(_traced_part(part, part.sequence in admitted) for part in batch.scheduled),
            admitted=self._names(batch.admitted),
            preempted=self._names(batch.preempted),
            finished=(),
            waiting=self._names(islice(scheduler.waiting, MAX_NAMED_WAITING)),
            num_waiting=len(scheduler.waiting),
            waiting_for_prefix=self._names(batch.waiting_for_prefix),
            num_running=len(scheduler.running),
            num_padding_rows=0,
            memory=_memory(scheduler.running, cache),
        )
        self._num_begun += 1
        self._begun.append(_BegunStep(batch, record))

    def end(
        self,
        batch: Batch,
        phase_seconds: Mapping[str, float],
        wasted: Collection[Sequence] = (),
        num_padding_rows: int = 0,
    ) -> None:
        """The results of a step are committed, or it failed. Its record takes every sequence that ended since the end
        of the step before.

        Args:
            batch: the one that `begin` was given; the very object.
            phase_seconds: the engine's phase times in all, from which those of the step are found.
            wasted: sequences of the batch that had ended before, so that their results were dropped.
            num_padding_rows: rows that filled the batch up to a captured size.
        """
        begun = next(begun for begun in self._begun if begun.batch is batch)
        self._begun.remove(begun)
        record = begun.record
        parts = record.parts
        if wasted:
            parts = tuple(
                replace(traced, is_wasted=part.sequence in wasted)
                for traced, part in zip(parts, batch.scheduled, strict=True)
            )
        ended = [sequence for sequence in self._live if sequence.is_finished]
        dropped = [sequence for sequence in ended if sequence.is_beam and sequence.finish_reason is None]
        for sequence in dropped:  # a beam that was not chosen; its search goes on
            del self._live[sequence]
        finished = [sequence for sequence in ended if sequence in self._live]
        self._steps.append(
            replace(
                record,
                parts=parts,
                finished=tuple(FinishedSequence(self._live.pop(sequence), _reason(sequence)) for sequence in finished),
                phase_seconds={
                    phase: seconds - self._phase_seconds.get(phase, 0.0) for phase, seconds in phase_seconds.items()
                },
                num_padding_rows=num_padding_rows,
            )
        )
        self._phase_seconds = dict(phase_seconds)

    def _name(self, sequence: Sequence) -> SequenceName:
        name = self._live.get(sequence)
        if name is None:
            name = self._live[sequence] = SequenceName(sequence.request.request_id, sequence.sample_idx)
        return name

    def _names(self, sequences: Iterable[Sequence]) -> tuple[SequenceName, ...]:
        return tuple([self._name(sequence) for sequence in sequences])


def _traced_part(part: ScheduledSequence, is_admitted: bool) -> TracedPart:
    sequence, start = part.sequence, part.start
    return TracedPart(
        request_id=sequence.request.request_id,
        sample_idx=sequence.sample_idx,
        start=start,
        num_new_tokens=part.num_new_tokens,
        num_cached_tokens=start if is_admitted else None,
        is_sampled=part.is_sampled,
        is_prompt=start < sequence.num_prompt_tokens,
    )


def _reason(sequence: Sequence) -> str | None:
    return None if sequence.finish_reason is None else str(sequence.finish_reason)


def _memory(running: Collection[Sequence], cache: PrefixCache) -> MemoryRecord:
    tables = [sequence.block_table for sequence in running if sequence.block_table is not None]
    num_locked_blocks = cache.num_tree_blocks - cache.num_evictable_blocks
    # Locked blocks are full; what else is computed lies in each sequence's own blocks behind them.
    num_tail_tokens = sum(table.num_tail_tokens for table in tables)
    return MemoryRecord(
        num_blocks=cache.num_blocks,
        num_free_blocks=cache.num_free_blocks,
        num_tree_blocks=cache.num_tree_blocks,
        num_private_blocks=cache.num_private_blocks,
        num_locked_blocks=num_locked_blocks,
        num_table_blocks=sum(len(table.block_ids) for table in tables),
        num_held_tokens=num_locked_blocks * cache.block_size + num_tail_tokens,
    )
