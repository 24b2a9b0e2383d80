"""What a whole trace comes to, in a few figures."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .record import StepRecord, TraceMetadata


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Figures of a trace; `str` gives them as text, `rows` as pairs of a name and a value.

    Attributes:
        num_tokens: computed, recompute and wasted ones included.
        num_prompt_tokens: those of them in parts that begin inside a prompt.
        num_recomputed_tokens: those of them in parts that begin with recompute after a preemption.
        num_cached_tokens: what admitted sequences found in the cache, over all admissions.
        num_requests: different request ids that ran.
        finish_reasons: how many sequences ended, by reason.
        phase_seconds: over all steps.
        mean_sharing: blocks in the tables of running sequences over blocks they hold, a mean over steps weighted by
            the latter; 1 if nothing is shared.
        slot_use: tokens held over token slots of the blocks held, likewise; None if the block size is unknown.
    """

    model: str
    num_steps: int
    num_tokens: int
    num_prompt_tokens: int
    num_recomputed_tokens: int
    num_cached_tokens: int
    num_sampled: int
    num_wasted: int
    num_padding_rows: int
    num_requests: int
    num_sequences: int
    num_preemptions: int
    mean_num_seqs: float
    max_num_waiting: int
    finish_reasons: dict[str, int]
    phase_seconds: dict[str, float]
    mean_sharing: float | None
    slot_use: float | None

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens needed, recompute included, that came from the cache, in [0, 1]."""
        return _ratio(self.num_cached_tokens, self.num_cached_tokens + self.num_prompt_tokens)

    @property
    def mean_num_tokens(self) -> float:
        """Tokens computed per step."""
        return _ratio(self.num_tokens, self.num_steps)

    def rows(self) -> list[tuple[str, str]]:
        seconds = sum(self.phase_seconds.values())
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.finish_reasons.items()))
        rows = [
            ("model", self.model or "unknown"),
            ("steps", f"{self.num_steps:,} in {seconds:.3f} s"),
            ("requests", f"{self.num_requests:,} ({self.num_sequences:,} sequences)"),
            ("finished", reasons or "none"),
            ("tokens computed", f"{self.num_tokens:,} ({self.num_prompt_tokens:,} of prompts)"),
            ("tokens chosen", f"{self.num_sampled:,}"),
            ("cached prompt tokens", f"{self.num_cached_tokens:,} (hit rate {self.hit_rate:.1%})"),
            ("mean batch", f"{self.mean_num_seqs:.2f} sequences, {self.mean_num_tokens:.1f} tokens"),
            ("longest queue", f"{self.max_num_waiting:,}"),
            ("preemptions", f"{self.num_preemptions:,} ({self.num_recomputed_tokens:,} tokens recomputed)"),
            ("wasted", f"{self.num_wasted:,} sequence steps, {self.num_padding_rows:,} padding rows"),
        ]
        if self.mean_sharing is not None:
            rows.append(("blocks without sharing", f"{self.mean_sharing:.2f} times as many"))
        if self.slot_use is not None:
            rows.append(("slots in use", f"{self.slot_use:.1%} of the blocks held"))
        shares = ", ".join(f"{phase} {_ratio(part, seconds):.1%}" for phase, part in self.phase_seconds.items())
        return [*rows, ("time", shares or "not measured")]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def summarize(metadata: TraceMetadata, steps: Sequence[StepRecord]) -> TraceSummary:
    """Add up a trace. O(parts)."""
    parts = [part for step in steps for part in step.parts]
    names = {(part.request_id, part.sample_idx) for part in parts}
    phase_seconds: defaultdict[str, float] = defaultdict(float)
    for step in steps:
        for phase, seconds in step.phase_seconds.items():
            phase_seconds[phase] += seconds
    num_used_blocks = sum(step.memory.num_used_blocks for step in steps)
    num_table_blocks = sum(step.memory.num_table_blocks for step in steps)
    num_slots = num_used_blocks * (metadata.block_size or 0)
    num_held_tokens = sum(step.memory.num_held_tokens for step in steps)
    return TraceSummary(
        model=metadata.model,
        num_steps=len(steps),
        num_tokens=sum(part.num_new_tokens for part in parts),
        num_prompt_tokens=sum(part.num_new_tokens for part in parts if part.is_prompt),
        num_recomputed_tokens=sum(part.num_new_tokens for part in parts if part.is_recomputed),
        num_cached_tokens=sum(part.num_cached_tokens or 0 for part in parts),
        num_sampled=sum(part.is_sampled and not part.is_wasted for part in parts),
        num_wasted=sum(part.is_wasted for part in parts),
        num_padding_rows=sum(step.num_padding_rows for step in steps),
        num_requests=len({request_id for request_id, _ in names}),
        num_sequences=len(names),
        num_preemptions=sum(len(step.preempted) for step in steps),
        mean_num_seqs=_ratio(len(parts), len(steps)),
        max_num_waiting=max((step.num_waiting for step in steps), default=0),
        finish_reasons=dict(Counter(end.reason or "no reason" for step in steps for end in step.finished)),
        phase_seconds=dict(phase_seconds),
        mean_sharing=num_table_blocks / num_used_blocks if num_used_blocks else None,
        slot_use=num_held_tokens / num_slots if num_slots else None,
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
