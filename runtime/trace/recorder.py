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
from ..batch import Batch, ScheduledSequence, WaitReason
from ..config import EngineConfig
from ..errors import InvalidConfigError
from ..outputs import FinishReason
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
    WaitingSequence,
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
        self._metadata = TraceMetadata(
            model=model,
            options=json.loads(json.dumps(asdict(config))),  # as they are read back from a file
            versions={"ramet": version("ramet"), "torch": version("torch"), "python": platform.python_version()},
        )
        self._steps: deque[StepRecord] = deque(maxlen=max_num_steps)
        self._begun: list[_BegunStep] = []
        self._num_begun = 0
        self._phase_seconds = dict(phase_seconds or {})
        self._live: dict[Sequence, SequenceName] = {}
        self._labels: dict[str, str] = {}

    @property
    def trace(self) -> Trace:
        """All steps whose results are complete; a copy."""
        return Trace(replace(self._metadata, labels=self._labels.copy()), list(self._steps))

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
            waiting=self._waiting(batch, islice(scheduler.waiting, MAX_NAMED_WAITING)),
            num_waiting=len(scheduler.waiting),
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
        unsampled: Collection[Sequence] = (),
        num_padding_rows: int = 0,
    ) -> None:
        """The results of a step are committed, or it failed. Its record takes every sequence that ended since the end
        of the step before.

        Args:
            batch: the one that `begin` was given; the very object.
            phase_seconds: the engine's phase times in all, from which those of the step are found.
            wasted: sequences of the batch whose results were dropped: they had ended, went on otherwise, or it raised.
            unsampled: sequences of the batch that turned out to have more tokens than it computed.
            num_padding_rows: rows that filled the batch up to a captured size.
        """
        begun = next(begun for begun in self._begun if begun.batch is batch)
        self._begun.remove(begun)
        record = begun.record
        parts = record.parts
        if wasted or unsampled:
            parts = tuple(
                replace(
                    traced,
                    is_wasted=part.sequence in wasted,
                    is_sampled=traced.is_sampled and part.sequence not in unsampled,
                )
                for traced, part in zip(parts, batch.scheduled, strict=True)
            )
        if self._steps.maxlen and record.step_idx % self._steps.maxlen == 0:
            self._forget_labels()
        self._steps.append(
            replace(
                record,
                parts=parts,
                finished=self._take_ended(),
                phase_seconds={
                    phase: seconds - self._phase_seconds.get(phase, 0.0) for phase, seconds in phase_seconds.items()
                },
                num_padding_rows=num_padding_rows,
            )
        )
        self._phase_seconds = dict(phase_seconds)

    def note_ended(self, aborted_ids: Collection[str] = ()) -> None:
        """No step may come for a while: enter who ended since the last one with that one, if no other is under way.

        Args:
            aborted_ids: requests that are as good as ended: the engine has still to take them out.
        """
        if self._begun or not self._steps:
            return
        finished = self._take_ended()
        aborted = [sequence for sequence, name in self._live.items() if name.request_id in aborted_ids]
        finished += tuple(FinishedSequence(self._live.pop(sequence), str(FinishReason.ABORT)) for sequence in aborted)
        if finished:
            last = self._steps.pop()
            self._steps.append(replace(last, finished=last.finished + finished))

    def _take_ended(self) -> tuple[FinishedSequence, ...]:
        """Who has ended since the last time this was asked."""
        ended = [sequence for sequence in self._live if sequence.is_finished]
        dropped = [sequence for sequence in ended if sequence.is_beam and sequence.finish_reason is None]
        for sequence in dropped:  # a beam that was not chosen; its search goes on
            del self._live[sequence]
        finished = [sequence for sequence in ended if sequence in self._live]
        return tuple(FinishedSequence(self._live.pop(sequence), _reason(sequence)) for sequence in finished)

    def _waiting(self, batch: Batch, sequences: Iterable[Sequence]) -> tuple[WaitingSequence, ...]:
        """Why each of these was not started."""
        sources = dict(batch.waiting_for_prefix)
        reason = None if batch.wait_reason is None else str(batch.wait_reason)
        stopped_at = batch.stopped_at
        waiting = []
        for sequence in sequences:
            name, source = self._name(sequence), sources.get(sequence)
            if source is not None:
                waiting.append(WaitingSequence(name, str(WaitReason.PREFIX), self._name(source)))
            elif stopped_at is None or sequence is stopped_at:
                waiting.append(WaitingSequence(name, reason))
            else:
                waiting.append(WaitingSequence(name, str(WaitReason.BEHIND), self._name(stopped_at)))
        return tuple(waiting)

    def _forget_labels(self) -> None:
        """Keep the labels of who lives or is in a step that is kept. O(all steps): to be called once in so many."""
        named = {name.request_id for name in self._live.values()}
        for step in self._steps:
            named.update(part.request_id for part in step.parts)
            named.update(waiting.name.request_id for waiting in step.waiting)
        self._labels = {request_id: label for request_id, label in self._labels.items() if request_id in named}

    def _name(self, sequence: Sequence) -> SequenceName:
        name = self._live.get(sequence)
        if name is None:
            request = sequence.request
            name = self._live[sequence] = SequenceName(request.request_id, sequence.sample_idx)
            if request.label is not None:
                self._labels[request.request_id] = request.label
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
        is_recomputed=start < sequence.num_lost_tokens,
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
