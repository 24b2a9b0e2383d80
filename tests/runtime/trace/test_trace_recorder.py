"""TraceRecorder over a real prefix cache and stubs of the scheduler and its sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ramet.radix.block_table import BlockTable
from ramet.radix.prefix_cache import PrefixCache
from ramet.runtime.batch import Batch, ScheduledSequence, WaitReason
from ramet.runtime.config import EngineConfig
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.outputs import FinishReason
from ramet.runtime.trace import (
    FinishedSequence,
    MemoryRecord,
    SequenceName,
    TracedPart,
    TraceRecorder,
    WaitingSequence,
)
from ramet.runtime.trace.record import MAX_NAMED_WAITING


@dataclass(eq=False)
class FakeSequence:
    request_id: str
    token_ids: list[int]
    sample_idx: int = 0
    block_table: BlockTable | None = None
    finish_reason: FinishReason | None = None
    is_finished: bool = False
    is_beam: bool = False
    label: str | None = None
    num_lost_tokens: int = 0
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)
        self.request = SimpleNamespace(request_id=self.request_id, label=self.label)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def name(self) -> SequenceName:
        return SequenceName(self.request_id, self.sample_idx)

    def finish(self, reason: FinishReason | None) -> None:
        self.is_finished, self.finish_reason = True, reason


class Bench:
    """A recorder, a cache, and the calls an engine makes; `running` and `waiting` are set by the test."""

    def __init__(self, **options: Any) -> None:
        self.recorder = TraceRecorder("tiny", EngineConfig(num_blocks=32), **options)
        self.cache = PrefixCache(32, 16)
        self.running: list[FakeSequence] = []
        self.waiting: list[FakeSequence] = []
        self.seconds = 0.0

    def admit(self, sequence: FakeSequence) -> None:
        match = self.cache.match(sequence.token_ids, max_tokens=sequence.num_tokens - 1)
        acquired = self.cache.acquire(sequence.token_ids, match, sequence.num_tokens)
        assert acquired is not None
        sequence.block_table = acquired[0]
        self.running.append(sequence)

    def batch(self, *parts: tuple[FakeSequence, int, int], **fields: Any) -> Batch:
        scheduled = [
            ScheduledSequence(cast(Any, sequence), start, count, count - 1) for sequence, start, count in parts
        ]
        return Batch(scheduled=scheduled, **cast(Any, fields))

    def begin(self, batch: Batch) -> None:
        scheduler = SimpleNamespace(running=self.running, waiting=self.waiting)
        self.recorder.begin(batch, cast(Any, scheduler), self.cache)

    def end(self, batch: Batch, **options: Any) -> None:
        self.seconds += 0.5
        self.recorder.end(batch, {"forward": self.seconds, "commit": 2 * self.seconds}, **options)


def tokens(count: int) -> list[int]:
    return list(range(count))


def test_a_step_says_who_ran_who_came_and_who_waited() -> None:
    bench = Bench()
    first, second, third, fourth = (FakeSequence(name, tokens(40)) for name in ("A", "B", "C", "D"))
    bench.admit(first)
    bench.waiting = [third, second, fourth]
    batch = bench.batch(
        (first, 0, 40),
        admitted=[first],
        preempted=[third],
        waiting_for_prefix=[(second, first)],
        wait_reason=WaitReason.ROOM,
        stopped_at=third,
    )
    bench.begin(batch)
    assert len(bench.recorder.trace) == 0
    bench.end(batch, num_padding_rows=3)
    (step,) = bench.recorder.trace
    assert step.parts == (TracedPart("A", 0, 0, 40, num_cached_tokens=0, is_sampled=True, is_prompt=True),)
    assert (step.admitted, step.preempted) == ((first.name,), (third.name,))
    assert step.num_waiting == 3
    assert step.waiting == (
        WaitingSequence(third.name, "room"),
        WaitingSequence(second.name, "prefix", first.name),
        WaitingSequence(fourth.name, "behind", third.name),
    )
    assert step.waiting_for_prefix == ((second.name, first.name),)
    assert (step.num_running, step.num_padding_rows, step.finished) == (1, 3, ())
    assert step.phase_seconds == {"forward": 0.5, "commit": 1.0}
    assert (step.num_tokens, step.num_prompt_tokens, step.seconds) == (40, 40, 1.5)


def test_parts_tell_prompt_from_generated_and_admission_from_running() -> None:
    bench = Bench()
    donor, heir = FakeSequence("A", tokens(40)), FakeSequence("B", [*tokens(36), 77])
    bench.admit(donor)
    bench.cache.commit(cast(BlockTable, donor.block_table), 40)
    donor.token_ids.append(5)
    bench.admit(heir)
    start = cast(BlockTable, heir.block_table).num_computed_tokens
    assert start == 36
    batch = bench.batch((donor, 40, 1), (heir, start, 1), admitted=[heir])
    bench.begin(batch)
    bench.end(batch)
    assert bench.recorder.trace[0].parts == (
        TracedPart("A", 0, 40, 1, is_sampled=True),
        TracedPart("B", 0, 36, 1, num_cached_tokens=36, is_sampled=True, is_prompt=True),
    )


def test_what_was_sampled_is_what_the_plan_said() -> None:
    bench = Bench()
    sequence = FakeSequence("A", tokens(40))
    bench.admit(sequence)
    chunk, rest = bench.batch((sequence, 0, 32)), bench.batch((sequence, 32, 8))
    for batch in (chunk, rest):
        bench.begin(batch)
        sequence.token_ids.append(1)  # whatever happens before the end is of no concern
        bench.end(batch)
        sequence.token_ids.pop()
    assert [step.parts[0].is_sampled for step in bench.recorder.trace] == [False, True]


def test_memory_counts_shared_blocks_once() -> None:
    bench = Bench()
    donor, heir = FakeSequence("A", tokens(40)), FakeSequence("B", [*tokens(32), 77, 78])
    bench.admit(donor)
    bench.cache.commit(cast(BlockTable, donor.block_table), 40)
    bench.admit(heir)
    batch = bench.batch((heir, 32, 2), admitted=[heir])
    bench.begin(batch)
    bench.end(batch)
    memory = bench.recorder.trace[0].memory
    # Two full blocks in the tree, shared; a private one each, in which the donor has 8 tokens and the heir none.
    assert memory == MemoryRecord(
        num_blocks=32,
        num_free_blocks=28,
        num_tree_blocks=2,
        num_private_blocks=2,
        num_locked_blocks=2,
        num_table_blocks=6,
        num_held_tokens=40,
    )
    assert memory.num_used_blocks == 4


def test_a_step_may_be_begun_before_the_results_of_the_one_before() -> None:
    bench = Bench()
    first, second = FakeSequence("A", tokens(20)), FakeSequence("B", tokens(20))
    bench.admit(first)
    bench.admit(second)
    batches = [bench.batch((first, 19, 1), (second, 19, 1)) for _ in range(2)]
    bench.begin(batches[0])
    bench.begin(batches[1])
    first.finish(FinishReason.STOP)
    bench.end(batches[0])
    bench.running = [second]
    second.finish(FinishReason.LENGTH)
    bench.end(batches[1], wasted=[first])
    one, two = bench.recorder.trace
    assert (one.step_idx, two.step_idx) == (0, 1)
    assert one.finished == (FinishedSequence(first.name, "stop"),)
    assert two.finished == (FinishedSequence(second.name, "length"),)
    assert [part.is_wasted for part in one.parts] == [False, False]
    assert [part.is_wasted for part in two.parts] == [True, False]
    assert one.phase_seconds == two.phase_seconds == {"forward": 0.5, "commit": 1.0}


def test_who_ends_in_the_queue_or_without_a_reason_is_noted_once() -> None:
    bench = Bench()
    runner, aborted, dropped = (FakeSequence(name, tokens(20)) for name in ("A", "B", "C"))
    bench.admit(runner)
    bench.waiting = [aborted, dropped]
    aborted.sample_idx = 3
    for _ in range(2):
        batch = bench.batch((runner, 19, 1))
        bench.begin(batch)
        aborted.finish(FinishReason.ABORT)
        dropped.finish(None)
        bench.waiting = []
        bench.end(batch)
    one, two = bench.recorder.trace
    assert one.finished == (FinishedSequence(SequenceName("B", 3), "abort"), FinishedSequence(dropped.name, None))
    assert two.finished == ()


def test_a_long_queue_is_named_in_part_and_counted_in_full() -> None:
    bench = Bench()
    runner = FakeSequence("A", tokens(20))
    bench.admit(runner)
    bench.waiting = [FakeSequence(f"W{idx}", [1]) for idx in range(MAX_NAMED_WAITING + 5)]
    batch = bench.batch((runner, 19, 1), wait_reason=WaitReason.SEATS)
    bench.begin(batch)
    bench.end(batch)
    (step,) = bench.recorder.trace
    assert step.num_waiting == MAX_NAMED_WAITING + 5
    assert [waiting.name for waiting in step.waiting] == [each.name for each in bench.waiting[:MAX_NAMED_WAITING]]
    assert {(waiting.reason, waiting.waits_for) for waiting in step.waiting} == {("seats", None)}


def test_only_the_last_steps_are_kept_if_so_asked_and_time_counts_from_the_start_of_the_recorder() -> None:
    bench = Bench(max_num_steps=2, phase_seconds={"forward": 0.25, "commit": 1.0})
    sequence = FakeSequence("A", tokens(20))
    bench.admit(sequence)
    for _ in range(3):
        batch = bench.batch((sequence, 19, 1))
        bench.begin(batch)
        bench.end(batch)
        if len(bench.recorder.trace) == 1:
            assert bench.recorder.trace[0].phase_seconds == {"forward": 0.25, "commit": 0.0}
    assert [step.step_idx for step in bench.recorder.trace] == [1, 2]
    with pytest.raises(InvalidConfigError, match=r"max_num_steps='steps\.svg' is not allowed"):
        TraceRecorder("model", EngineConfig(), max_num_steps="steps.svg")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError, match="max_num_steps=0 is not allowed"):
        Bench(max_num_steps=0)


def test_the_trace_is_a_copy_with_the_options() -> None:
    bench = Bench()
    trace = bench.recorder.trace
    sequence = FakeSequence("A", tokens(20))
    bench.admit(sequence)
    batch = bench.batch((sequence, 19, 1))
    bench.begin(batch)
    bench.end(batch)
    assert len(trace) == 0
    assert trace.metadata.model == "tiny"
    assert trace.metadata.token_budget == EngineConfig().max_num_batched_tokens
    assert trace.metadata.block_size == 16
    assert trace.metadata.options["num_blocks"] == 32
    assert set(trace.metadata.versions) == {"ramet", "torch", "python"}


def test_what_is_computed_again_after_a_preemption_is_recompute() -> None:
    bench = Bench()
    sequence = FakeSequence("A", tokens(20), num_lost_tokens=30)
    sequence.token_ids += tokens(12)
    bench.admit(sequence)
    for part in ((16, 8), (24, 7), (31, 1)):
        batch = bench.batch((sequence, *part))
        bench.begin(batch)
        bench.end(batch)
    assert [(step.parts[0].is_prompt, step.parts[0].is_recomputed) for step in bench.recorder.trace] == [
        (True, True),
        (False, True),
        (False, False),
    ]
    assert [step.num_recomputed_tokens for step in bench.recorder.trace] == [8, 7, 0]


def test_labels_are_kept_as_long_as_their_requests() -> None:
    bench = Bench(max_num_steps=2)
    for idx in range(9):
        sequence = FakeSequence(f"r{idx}", tokens(20), label=f"call {idx}" if idx % 2 else None)
        bench.admit(sequence)
        batch = bench.batch((sequence, 19, 1))
        bench.begin(batch)
        sequence.finish(FinishReason.LENGTH)
        bench.running = []
        bench.end(batch)
        labels = bench.recorder.trace.metadata.labels
        if idx % 2:
            assert labels[f"r{idx}"] == f"call {idx}"
        assert len(labels) <= 3
    assert labels.items() >= {"r7": "call 7"}.items()


def test_who_ends_when_no_step_comes_is_noted_with_the_last_one() -> None:
    bench = Bench()
    first, second, third = (FakeSequence(name, tokens(20)) for name in ("A", "B", "C"))
    for sequence in (first, second, third):
        bench.admit(sequence)
    bench.recorder.note_ended()  # nothing to note it with
    batch = bench.batch((first, 19, 1))
    bench.begin(batch)
    first.finish(FinishReason.ABORT)
    bench.recorder.note_ended()  # the step is under way and will note it itself
    bench.end(batch)
    second.finish(FinishReason.ERROR)
    for _ in range(2):
        bench.recorder.note_ended(["C"])
    (step,) = bench.recorder.trace
    assert step.finished == (
        FinishedSequence(first.name, "abort"),
        FinishedSequence(second.name, "error"),
        FinishedSequence(third.name, "abort"),
    )
