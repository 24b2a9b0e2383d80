"""Batch: the plan of one step, as the scheduler made it. ForwardBatch: the tensors the model reads for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from torch import Tensor

from ..kernels.interface import AttentionMetadata
from ..radix.prefix_cache import BlockCopy
from .sequence import Sequence


@dataclass(eq=False, slots=True)
class ScheduledSequence:
    """One sequence's part of a step: tokens [start, start + num_new_tokens) of it are computed.

    Nobody changes it once it is planned; it is not frozen because hundreds are made in every step.

    Attributes:
        start: the sequence's num_computed_tokens when it was scheduled.
        logits_from: logits are wanted for the step's tokens from this offset on; num_new_tokens wants none,
            num_new_tokens - 1 the last only (the usual case), less than that for prompt logprobs and for branches. The
            last row is computed in any case: from it can be seen whether what the part computed is good.
    """

    sequence: Sequence
    start: int
    num_new_tokens: int
    logits_from: int

    @property
    def end(self) -> int:
        return self.start + self.num_new_tokens

    @property
    def num_wanted_rows(self) -> int:
        return self.num_new_tokens - self.logits_from

    @property
    def num_logit_rows(self) -> int:
        """Rows that are computed: those of its last tokens, the wanted ones, and one if none is wanted."""
        return self.num_new_tokens - self.logits_from or 1

    @property
    def is_sampled(self) -> bool:
        """The step reaches the sequence's last token, so its next one can be sampled."""
        return self.end >= self.sequence.num_tokens  # beyond, where the last token is still pending

    @property
    def is_read_by_host(self) -> bool:
        """What the sequence goes on with is decided by the host, from this part's logits: nothing can be planned of it
        before they are there."""
        sequence = self.sequence
        if sequence.is_beam or sequence.branch is not None:
            return True
        first = self.start + self.logits_from + 1
        return sequence.prompt_logprobs is not None and first < min(self.end + 1, sequence.num_prompt_tokens)


class WaitReason(StrEnum):
    """Why a waiting sequence was not started in a step."""

    PREFIX = "prefix"
    """A running sequence is just computing more of its prefix."""
    ROOM = "room"
    """The KV cache has too few blocks for it, or for those that run."""
    LOADING = "loading"
    """More of its prefix is being loaded from a tier behind the pool than one step may copy."""
    SEATS = "seats"
    """As many sequences run as may."""
    BUDGET = "budget"
    """The tokens or the rows of logits that a step may have are taken, or too few are left for its prompt."""
    BEHIND = "behind"
    """One that is served before it did not fit."""
    BATCHING = "batching"
    """Nobody joins a batch that runs: `EngineConfig.batching` is "request-level"."""
    TRIAL = "trial"
    """A step failed, and nobody starts before those who were in it are known to be good or bad (`suspects.py`)."""


@dataclass(slots=True)
class Batch:
    """The plan of one step.

    Attributes:
        scheduled: who runs, in the order of the flattened rows.
        block_copies: copy-on-write of partial blocks; done before the forward pass, all reads before any write.
        admitted: sequences that were given their blocks while this plan was made; they are scheduled too.
        preempted: sequences that lost their blocks while this plan was made.
        forked: running sequences that some of the block copies are for, whether they are scheduled or not.
        waiting_for_prefix: waiting sequences passed over, each with the running one that is just computing its prefix.
        wait_reason: why the others that wait were not started; None if there are none.
        stopped_at: the one for which wait_reason holds, while the others wait behind it; None: it holds for all.
        drawn_token_ids: int64 on the device, what the step in flight draws; for tokens of this one that are pending.
    """

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    forked: list[Sequence] = field(default_factory=list)
    waiting_for_prefix: list[tuple[Sequence, Sequence]] = field(default_factory=list)
    wait_reason: WaitReason | None = None
    stopped_at: Sequence | None = None
    drawn_token_ids: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return sum(part.num_new_tokens for part in self.scheduled)

    @property
    def is_empty(self) -> bool:
        return not self.scheduled


class FlatBatch:
    """A batch as flat lists, what every runner makes its own arrays of. Reads the sequences; mutates nothing.

    It stays as it is when the sequences go on or end.

    Attributes:
        token_ids, positions: of the new tokens of all scheduled sequences, one after another. A token that is pending
            stands as -1 - its row in `Batch.drawn_token_ids`.
        query_starts: one more than there are sequences; sequence s has rows query_starts[s] .. query_starts[s + 1].
        logit_rows: the rows whose logits are computed, in order of the batch; one of each sequence at least.
        block_tables: one per sequence.
        context_lens: how far each sequence is computed after the step.
    """

    def __init__(self, batch: Batch) -> None:
        self.token_ids: list[int] = []
        self.positions: list[int] = []
        self.logit_rows: list[int] = []
        self.query_starts = [0]
        self.block_tables: list[list[int]] = []
        self.context_lens: list[int] = []
        for part in batch.scheduled:
            block_table = part.sequence.block_table
            assert block_table is not None
            first_row = self.query_starts[-1]
            self.token_ids += part.sequence.token_ids[part.start : part.end]
            if part.end > part.sequence.num_tokens:
                self.token_ids.append(-1 - part.sequence.pending_row)
            self.positions += range(part.start, part.end)
            end_row = first_row + part.num_new_tokens
            self.logit_rows += range(end_row - part.num_logit_rows, end_row)
            self.query_starts.append(end_row)
            self.block_tables.append(block_table.block_ids.copy())
            self.context_lens.append(part.end)
        assert len(self.token_ids) == self.query_starts[-1]


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
