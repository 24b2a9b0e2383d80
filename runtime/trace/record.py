"""What a trace keeps of an engine and of each of its steps: plain values, which refer to nothing that lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_NAMED_WAITING = 256
"""A record names that many waiting sequences, the first of the queue, and counts the others."""


@dataclass(frozen=True, slots=True)
class TraceMetadata:
    """What a trace is of.

    Attributes:
        model: its name.
        options: the engine's, by name; values as JSON has them.
        versions: of the packages that matter, by name.
        labels: what requests are called, by request id; only those that are called something.
    """

    model: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def token_budget(self) -> int | None:
        """max_num_batched_tokens, or None if the trace does not say."""
        return self._positive_option("max_num_batched_tokens")

    @property
    def block_size(self) -> int | None:
        """Token slots in a block, or None if the trace does not say."""
        return self._positive_option("block_size")

    def _positive_option(self, name: str) -> int | None:
        value = self.options.get(name)
        return value if isinstance(value, int) and value > 0 else None


@dataclass(frozen=True, slots=True, order=True)
class SequenceName:
    """Which sample of which request. Request ids are unique among live requests only."""

    request_id: str
    sample_idx: int

    def __str__(self) -> str:
        return f"{self.request_id}/{self.sample_idx}"


@dataclass(frozen=True, slots=True)
class TracedPart:
    """One sequence's part of a step: its tokens [start, start + num_new_tokens) were computed.

    Attributes:
        num_cached_tokens: what it found in the cache, on the step that admitted it; None on every other step.
        is_sampled: the part reached the sequence's last token, so the step chose its next one.
        is_prompt: the part begins inside the prompt.
        is_wasted: the sequence had ended by the time the step's results were looked at, or got another token than the
            step went on with, or the step failed; they were dropped.
        is_recomputed: the part begins among tokens that had been computed before, for the sequence was preempted.
    """

    request_id: str
    sample_idx: int
    start: int
    num_new_tokens: int
    num_cached_tokens: int | None = None
    is_sampled: bool = False
    is_prompt: bool = False
    is_wasted: bool = False
    is_recomputed: bool = False

    @property
    def name(self) -> SequenceName:
        return SequenceName(self.request_id, self.sample_idx)


@dataclass(frozen=True, slots=True)
class WaitingSequence:
    """A sequence that stood in the queue once the step had been planned.

    Attributes:
        reason: a value of `runtime.batch.WaitReason`, which says what each means; None if the file does not say.
        waits_for: with "prefix" the running sequence that was computing it; with "behind" the one that did not fit.
    """

    name: SequenceName
    reason: str | None = None
    waits_for: SequenceName | None = None

    @property
    def is_for_prefix(self) -> bool:
        return self.reason == "prefix"


@dataclass(frozen=True, slots=True)
class FinishedSequence:
    """A sequence that ended.

    Attributes:
        reason: stop, length, abort or error; None if the engine gave none.
    """

    name: SequenceName
    reason: str | None


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """The KV cache when a step had been planned and before its results were committed.

    Free, tree and private blocks add up to num_blocks.

    Attributes:
        num_locked_blocks: tree blocks that some running sequence has in its table; the other ones may be evicted.
        num_table_blocks: sum of the lengths of the running sequences' block tables: what they would hold if they
            shared nothing.
        num_held_tokens: tokens computed in the blocks of running sequences, each physical slot counted once.
    """

    num_blocks: int
    num_free_blocks: int
    num_tree_blocks: int
    num_private_blocks: int
    num_locked_blocks: int
    num_table_blocks: int
    num_held_tokens: int

    @property
    def num_used_blocks(self) -> int:
        """Blocks that running sequences hold, shared ones counted once."""
        return self.num_locked_blocks + self.num_private_blocks


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step.

    Attributes:
        step_idx: counts from the start of the recorder.
        start_time: seconds on the monotonic clock, when the step had been planned.
        phase_seconds: time spent in each phase (see `runtime/metrics.py`) since the results of the step before were
            complete. Where the engine overlaps steps, schedule and intake are those of the step after.
        parts: who ran, in the order of the batch.
        waiting: who stood in the queue once the step had been planned, in its order; at most MAX_NAMED_WAITING.
        num_waiting: how many stood there in all.
        num_running: sequences that hold blocks, whether the step computed something of them or not.
        num_padding_rows: rows that only fill the batch up to a captured size.
    """

    step_idx: int
    start_time: float
    phase_seconds: dict[str, float]
    parts: tuple[TracedPart, ...]
    admitted: tuple[SequenceName, ...]
    preempted: tuple[SequenceName, ...]
    finished: tuple[FinishedSequence, ...]
    waiting: tuple[WaitingSequence, ...]
    num_waiting: int
    num_running: int
    num_padding_rows: int
    memory: MemoryRecord

    @property
    def num_tokens(self) -> int:
        """Tokens computed, padding not counted."""
        return sum(part.num_new_tokens for part in self.parts)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens computed in parts that begin inside a prompt."""
        return sum(part.num_new_tokens for part in self.parts if part.is_prompt)

    @property
    def num_recomputed_tokens(self) -> int:
        """Tokens computed in parts that begin with recompute, inside a prompt or behind it."""
        return sum(part.num_new_tokens for part in self.parts if part.is_recomputed)

    @property
    def waiting_for_prefix(self) -> tuple[tuple[SequenceName, SequenceName], ...]:
        """Who waited while its prefix was computed, and by whom. A file of version 1 does not say by whom."""
        return tuple(
            [
                (waiting.name, waiting.waits_for)
                for waiting in self.waiting
                if waiting.is_for_prefix and waiting.waits_for
            ]
        )

    @property
    def seconds(self) -> float:
        return sum(self.phase_seconds.values())
