"""Admission: may one more sequence start, given the blocks the running ones are still going to need?

The pool is over-committed on purpose: most requests end before max_tokens. `reserve="max"` never over-commits (Orca,
OSDI 2022, section 4.2); `reserve="estimate"` expects each sequence to use a share of the tokens it may still
generate. The share starts high, decays while all goes well and jumps after a preemption (SGLang's new-token ratio).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from .sequence import Sequence

INITIAL_RATIO = 0.7
MIN_RATIO = 0.1
DECAY_STEPS = 600


class AdmissionControl:
    """Estimates block demand.

    Attributes:
        new_token_ratio: expected share of the tokens still allowed that a sequence will really generate, in [0, 1].
    """

    def __init__(self, block_size: int, reserve: Literal["estimate", "max"], conservativeness: float) -> None:
        self.block_size = block_size
        self._is_max = reserve == "max"
        self._initial = min(1.0, INITIAL_RATIO * conservativeness)
        self._min = min(self._initial, MIN_RATIO * conservativeness)
        self._decay = (self._initial - self._min) / DECAY_STEPS
        self.new_token_ratio = 1.0 if self._is_max else self._initial

    def blocks_still_needed(self, sequences: Iterable[Sequence]) -> int:
        """Blocks these sequences are expected to allocate beyond what they hold. O(sequences)."""
        return sum(max(0, self._expected_blocks(sequence) - _num_held_blocks(sequence)) for sequence in sequences)

    def blocks_to_admit(self, sequence: Sequence, num_shared_blocks: int) -> int:
        """Blocks a waiting sequence is expected to allocate if the tree already holds num_shared_blocks of it."""
        return max(0, self._expected_blocks(sequence) - num_shared_blocks)

    def on_step(self) -> None:
        """A step passed without preemption: expect a little less."""
        if not self._is_max:
            self.new_token_ratio = max(self._min, self.new_token_ratio - self._decay)

    def on_preemption(self, running: Iterable[Sequence]) -> None:
        """Expected too little: from now on at least what the running ones have used of their allowance."""
        if self._is_max:
            return
        used = allowed = 0
        for sequence in running:
            used += sequence.num_output_tokens
            allowed += sequence.max_tokens
        observed = used / allowed if allowed else 0.0
        self.new_token_ratio = min(1.0, max(self.new_token_ratio, observed, self._initial))

    def _expected_blocks(self, sequence: Sequence) -> int:
        expected = sequence.num_tokens + int(self.new_token_ratio * sequence.num_remaining_tokens)
        return -(-expected // self.block_size)


def _num_held_blocks(sequence: Sequence) -> int:
    return 0 if sequence.block_table is None else len(sequence.block_table.block_ids)
