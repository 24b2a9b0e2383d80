"""Admission: may one more sequence start, given the blocks the running ones are still going to need?

Three answers (EngineConfig.reserve):

    max         there must be room for the longest outcome of everybody: nothing is ever preempted (Orca, OSDI 2022,
                section 4.2). Most requests end before max_tokens, so this leaves much of the pool unused.
    estimate    there must be room for a share of what each may still generate: SGLang's new-token ratio, which starts
                high, decays while all goes well, jumps after a preemption, and begins anew when nothing runs.
    none        there must be room for the next step.

Two things differ from SGLang. After a preemption the ratio never falls below where it began: a guess that was just
proved too low is not replaced by the share observed so far, which is lower still for sequences that go on. And who
ignores the end of sequence has its whole allowance counted, for its length is no guess.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Literal

from .sequence import Sequence

logger = logging.getLogger(__name__)

INITIAL_RATIO = 0.7
MIN_SHARE_OF_INITIAL = 0.14
DECAY_STEPS = 600
RATIO_SCALE = 1 << 16
"""Ratios are taken to integers for the sum over all that run, which is twice as fast."""

MAX_ESTIMATED_TOKENS = 4096
"""Of longer allowances only that much is guessed at: "as many as fit" is a limit, not a plan."""


class AdmissionControl:
    """Weighs the blocks that are expected to be needed against those that can be had.

    Args:
        conservativeness: scales the ratio; 0 expects no new tokens at all, and 1 / INITIAL_RATIO all of them.

    Attributes:
        new_token_ratio: expected share of the tokens still allowed that a sequence will really generate, in [0, 1].
    """

    def __init__(self, block_size: int, reserve: Literal["estimate", "max", "none"], conservativeness: float) -> None:
        self._block_size = block_size
        self._reserve = reserve
        is_max = reserve == "max"
        self._initial = 1.0 if is_max else min(1.0, INITIAL_RATIO * conservativeness)
        self._min = 1.0 if is_max else MIN_SHARE_OF_INITIAL * self._initial
        self._decay = (self._initial - self._min) / DECAY_STEPS
        self._sure_ratio = 1.0 if is_max else min(1.0, conservativeness)
        self._max_estimated_tokens = sys.maxsize if is_max else MAX_ESTIMATED_TOKENS
        self.new_token_ratio = self._initial
        self._running: list[Sequence] = []
        self._num_promised: int | None = None

    def begin_pass(self, running: list[Sequence]) -> None:
        """A pass of admissions begins beside these sequences. O(1): they are looked at when the first one asks."""
        self._running = running
        self._num_promised = None

    def has_room(
        self, sequence: Sequence, num_matched_blocks: int, num_newly_locked_blocks: int, num_available_blocks: int
    ) -> bool:
        """Whether a waiting sequence can start and everybody still gets what they are expected to need.

        Args:
            num_matched_blocks: what the tree has of it.
            num_newly_locked_blocks: those of them that nobody runs on: available now, but room for nobody then.
            num_available_blocks: free and evictable ones.
        """
        if self._reserve == "none":
            return True
        if self._num_promised is None:
            self._num_promised = self._num_missing_blocks(self._running)
        needed = max(0, self._num_missing_blocks((sequence,)) - num_matched_blocks)
        return needed + num_newly_locked_blocks + self._num_promised <= num_available_blocks

    def on_admission(self, sequence: Sequence) -> None:
        """The sequence has its first blocks; the rest is promised to it."""
        if self._num_promised is not None:
            self._num_promised += self._num_missing_blocks((sequence,))

    def on_step(self) -> None:
        """A step passed without preemption: expect a little less."""
        self.new_token_ratio = max(self._min, self.new_token_ratio - self._decay)

    def on_idle(self) -> None:
        """Nothing runs: what was learned about the last requests says little about the next."""
        self.new_token_ratio = self._initial

    def on_preemption(self, running: Iterable[Sequence]) -> None:
        """Expected too little: from now on at least what the running ones have used of their allowance."""
        used = allowed = 0
        for sequence in running:
            used += sequence.num_output_tokens
            allowed += sequence.max_tokens
        observed = used / allowed if allowed else 0.0
        self.new_token_ratio = min(1.0, max(self.new_token_ratio, observed, self._initial))

    def _num_missing_blocks(self, sequences: Iterable[Sequence]) -> int:
        """Blocks that these are expected to need beyond those they hold. One loop: it is over all that run."""
        ratio = int(self.new_token_ratio * RATIO_SCALE)
        sure_ratio = int(self._sure_ratio * RATIO_SCALE)
        most, block_size = self._max_estimated_tokens, self._block_size
        num_missing = 0
        for sequence in sequences:
            num_tokens = len(sequence.token_ids)
            num_new = sequence.max_tokens + sequence.num_prompt_tokens - num_tokens
            if sequence.request.sampling_params.ignore_eos:
                num_new = num_new * sure_ratio // RATIO_SCALE
            elif num_new < most:
                num_new = num_new * ratio // RATIO_SCALE
            else:
                num_new = most * ratio // RATIO_SCALE
            num_blocks = -(-(num_tokens + num_new) // block_size)
            if sequence.is_beam and num_tokens == sequence.num_prompt_tokens:
                # One sequence until its first choice; then beam_width of them, which share the prompt's full blocks.
                num_own = num_blocks - num_tokens // block_size
                num_blocks += (sequence.request.sampling_params.beam_width - 1) * num_own
            table = sequence.block_table
            if table is not None:
                num_blocks -= len(table.block_ids)
            if num_blocks > 0:
                num_missing += num_blocks
        return num_missing


def warn_of_preemption(sequence: Sequence, number: int) -> None:
    """Say that a running sequence was not given the room it needed, and what helps."""
    logger.warning(
        "Request %s (sample %d) is preempted by recompute because the KV cache has no free block (preemption "
        "number %d). Give the cache more memory (kv_cache_memory or num_blocks), or lower max_num_seqs or "
        "max_num_batched_tokens, raise schedule_conservativeness, or set reserve='max', which never preempts.",
        sequence.request.request_id,
        sequence.sample_idx,
        number,
    )
