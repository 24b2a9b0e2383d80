"""StepPlan: a batch in the making, and what the step may still take. plan_part: how much of one sequence fits in."""

from __future__ import annotations

from collections.abc import Collection

from .batch import Batch, ScheduledSequence, WaitReason
from .config import EngineConfig
from .sequence import Sequence


class StepPlan:
    """What is planned so far.

    Attributes:
        batch: the plan.
        num_tokens, num_seqs, num_logit_rows: what is left of the step's hard limits.
    """

    __slots__ = ("_config", "batch", "num_logit_rows", "num_seqs", "num_tokens")

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.batch = Batch()
        self._reset()

    @property
    def is_full(self) -> bool:
        return self.num_tokens <= 0 or self.num_seqs <= 0 or self.num_logit_rows <= 0

    def take(self, part: ScheduledSequence) -> None:
        self.batch.scheduled.append(part)
        self.num_tokens -= part.num_new_tokens
        self.num_seqs -= 1
        self.num_logit_rows -= part.num_logit_rows

    def stop(self, reason: WaitReason, sequence: Sequence | None = None) -> None:
        """Nobody else starts in this step: for that reason, or because `sequence`, for which it holds, comes first."""
        self.batch.wait_reason, self.batch.stopped_at = reason, sequence

    def count_decodes(self) -> None:
        """All that is in the batch was appended to it directly, one token and one row of logits each."""
        self._reset()
        num_decodes = len(self.batch.scheduled)
        self.num_tokens -= num_decodes
        self.num_seqs -= num_decodes
        self.num_logit_rows -= num_decodes

    def drop(self, sequences: Collection[Sequence]) -> None:
        """Take the parts of these sequences out again, and count what is left. O(batch)."""
        kept = [part for part in self.batch.scheduled if part.sequence not in sequences]
        self.batch.scheduled.clear()
        self._reset()
        for part in kept:
            self.take(part)

    def _reset(self) -> None:
        self.num_tokens = self._config.max_num_batched_tokens
        self.num_seqs = self._config.max_num_seqs
        self.num_logit_rows = self._config.max_num_logit_rows


def plan_part(
    sequence: Sequence, start: int, step: StepPlan, config: EngineConfig, *, is_alone: bool
) -> ScheduledSequence | None:
    """The next part of a sequence that is computed up to `start`, within what is left; None if nothing fits.

    What takes several steps is cut into pieces of nearly equal size (Sarathi-Serve, OSDI 2024, section 4.2): as many
    as full steps would be, without a small one at the end that costs a step of its own.

    Args:
        is_alone: nobody else runs or waits, so long_prefill_token_threshold would protect nobody.
    """
    if step.is_full:
        return None
    remaining = sequence.num_tokens - start
    limit = step.num_tokens
    if config.long_prefill_token_threshold and not is_alone:
        limit = min(limit, config.long_prefill_token_threshold)
    if limit >= remaining:
        num_new_tokens = remaining
    elif config.enable_chunked_prefill:
        num_pieces = -(-remaining // limit)
        num_new_tokens = -(-remaining // num_pieces)
    else:
        return None
    position = sequence.next_wanted_logits()
    if position >= sequence.num_tokens - 1:
        logits_from = num_new_tokens - 1 if num_new_tokens == remaining else num_new_tokens
        return ScheduledSequence(sequence, start, num_new_tokens, logits_from)
    first_row = max(0, position - start)
    num_new_tokens = min(num_new_tokens, first_row + step.num_logit_rows)  # a row for each token from there on, or one
    last_row = num_new_tokens - 1 if num_new_tokens == remaining else num_new_tokens
    return ScheduledSequence(sequence, start, num_new_tokens, min(first_row, last_row))
