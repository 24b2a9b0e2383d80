"""Batch: the plan of one step, as the scheduler made it. ForwardBatch: the tensors the model reads for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ..kernels.interface import AttentionMetadata
from ..radix.prefix_cache import BlockCopy
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """One sequence's part of a step: tokens [start, start + num_new_tokens) of it are computed.

    Attributes:
        start: the sequence's num_computed_tokens when it was scheduled.
        logits_from: logits are wanted for the step's tokens from this offset on; num_new_tokens wants none,
            num_new_tokens - 1 the last only (the usual case), less than that for prompt logprobs.
    """

    sequence: Sequence
    start: int
    num_new_tokens: int
    logits_from: int

    @property
    def end(self) -> int:
        return self.start + self.num_new_tokens

    @property
    def num_logit_rows(self) -> int:
        return self.num_new_tokens - self.logits_from

    @property
    def is_sampled(self) -> bool:
        """The step reaches the sequence's last token, so its next one can be sampled."""
        return self.end == self.sequence.num_tokens


@dataclass(slots=True)
class Batch:
    """The plan of one step.

    Attributes:
        scheduled: who runs, in the order of the flattened rows.
        block_copies: copy-on-write of partial blocks; done before the forward pass, all reads before any write.
        admitted: sequences that were given their blocks while this plan was made; they are scheduled too.
        preempted: sequences that lost their blocks while this plan was made.
    """

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(part.num_new_tokens for part in self.scheduled)

    @property
    def is_empty(self) -> bool:
        return not self.scheduled


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """What a model reads in one step.

    Attributes:
        token_ids: int64 [T].
        positions: int64 [T], each token's position in its own sequence.
        logit_rows: int64 [R], the rows whose logits are wanted, in order of the batch.
        attention: metadata of the paged context.
    """

    token_ids: Tensor
    positions: Tensor
    logit_rows: Tensor
    attention: AttentionMetadata
