"""StepAcceptance: enters a step's results: cached blocks, new tokens, and the ends that need no text to be seen.

It is all that the next plan depends on; text comes later, in `output_processor.py`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from torch import Tensor

from ..radix.errors import CacheUsageError
from ..radix.prefix_cache import PrefixCache
from . import beam_group, choice_scoring, prompt_logprobs
from .batch import Batch, ScheduledSequence
from .metrics import EngineMetrics
from .output_processor import AcceptedTokens
from .outputs import FinishReason
from .request_state import RequestState
from .sampler import SampledToken, Sampler
from .scheduler import Scheduler
from .sequence import Sequence
from .sequence_factory import SequenceFactory
from .step_sampling import error_of


class StepAcceptance:
    """Belongs to an engine, whose sequences, queues, cache and counts it mutates.

    Args:
        requests: the live requests by id.
    """

    def __init__(
        self,
        requests: Mapping[str, RequestState],
        scheduler: Scheduler,
        cache: PrefixCache,
        sampler: Sampler,
        sequences: SequenceFactory,
        metrics: EngineMetrics,
    ) -> None:
        self._requests = requests
        self._scheduler = scheduler
        self._cache = cache
        self._sampler = sampler
        self._sequences = sequences
        self._metrics = metrics

    def accept(
        self, batch: Batch, logits: Tensor, samples: list[SampledToken | None], void: Collection[Sequence] = ()
    ) -> list[AcceptedTokens]:
        """Enter a step's results.

        Args:
            logits: fp32 [R, vocab], the rows that the batch asked for.
            samples: one per scheduled sequence.
            void: sequences whose parts are void, besides those that have ended.
        """
        self._metrics.num_steps += 1
        self._metrics.num_preemptions = self._scheduler.num_preemptions
        accepted: list[AcceptedTokens] = []
        searches: dict[str, RequestState] = {}
        row = 0
        for part, sampled in zip(batch.scheduled, samples, strict=True):
            sequence, first_row = part.sequence, row
            row += part.num_logit_rows
            self._metrics.num_computed_tokens += part.num_new_tokens
            if sequence.is_finished or sequence in void:
                self._metrics.num_wasted_tokens += part.num_new_tokens
                continue
            state = self._requests[sequence.request.request_id]
            is_read = part.is_read_by_host and (sequence.prompt_logprobs is not None or sequence.branch is not None)
            if is_read and (sampled is None or sampled.error is None):
                sampled = error_of(logits[first_row:row]) or sampled
            if sampled is not None and sampled.error is not None:  # nothing of it is cached or noted for others
                accepted.append(self._fail(sequence, state, sampled.error, sampled.cause))
                continue
            self._accept_computed(part, state)
            try:
                self._record(part, logits[first_row : first_row + part.num_wanted_rows], state, is_read=is_read)
            except (AssertionError, CacheUsageError):  # not the request's fault: the engine is broken
                raise
            except Exception as cause:
                accepted.append(self._fail(sequence, state, f"reading its logprobs raised {cause!r}", cause))
                continue
            if sequence.branch is not None:
                if choice_scoring.advance(part, state, self._scheduler, self._sequences):
                    accepted.append(AcceptedTokens(sequence, state))
            elif sampled is not None:
                accepted.append(self._accept_token(sequence, state, sampled))
            elif sequence.is_beam and part.is_sampled:
                searches[state.request.request_id] = state
        for state in searches.values():
            accepted += self._advance_beams(state)
        return accepted

    def start(self, sequence: Sequence, state: RequestState) -> list[AcceptedTokens]:
        """Append the tokens that a sequence's text begins with because its grammar forces them."""
        if sequence.constraint is None or sequence.is_beam:
            return []
        try:
            forced = sequence.constraint.start(sequence.max_tokens)
            self._append_forced(sequence, forced)
        except Exception as cause:
            return [AcceptedTokens(sequence, state, error=_raised(cause), cause=cause)]
        if not forced and sequence.finish_reason is None:
            return []
        return [AcceptedTokens(sequence, state, tuple(forced))]

    def _accept_computed(self, part: ScheduledSequence, state: RequestState) -> None:
        """The step computed the keys and values of this part: make full blocks shareable, and count."""
        sequence, end = part.sequence, part.end
        assert sequence.block_table is not None
        self._cache.commit(sequence.block_table, end)
        num_prompt_tokens = sequence.num_prompt_tokens
        if part.start < num_prompt_tokens:
            state.metrics.num_computed_prompt_tokens += min(end, num_prompt_tokens) - part.start
        if end >= num_prompt_tokens and sequence.is_prompt_new:
            sequence.is_prompt_counted = True
            self._metrics.num_prompt_tokens += num_prompt_tokens
            self._metrics.num_cached_tokens += sequence.num_cached_tokens or 0

    def _record(self, part: ScheduledSequence, rows: Tensor, state: RequestState, *, is_read: bool) -> None:
        """Read the logprobs that are wanted out of a part's rows of logits."""
        if is_read and part.sequence.prompt_logprobs is not None:
            prompt_logprobs.record(part, rows, self._cache, self._sampler)
        if part.sequence.branch is not None:
            choice_scoring.record(part, rows, state, self._sampler)

    def _accept_token(self, sequence: Sequence, state: RequestState, sampled: SampledToken) -> AcceptedTokens:
        """Append a sampled token, and those that the sequence's grammar forces behind it."""
        try:
            forced = self._append_token(sequence, sampled.token_id)
        except Exception as cause:
            return self._fail(sequence, state, _raised(cause), cause)
        if forced is None:
            assert sequence.constraint is not None
            return self._fail(sequence, state, sequence.constraint.dead_end)
        self._metrics.num_generated_tokens += 1
        if sequence.finish_reason is not None:
            self._scheduler.remove(sequence)
        return AcceptedTokens(sequence, state, (sampled.token_id, *forced), sampled.logprobs)

    def _append_token(self, sequence: Sequence, token_id: int) -> list[int] | None:
        """Append a token and what is forced behind it, which is returned; None at a dead end. Mutates the sequence and
        its grammar; what it raises is the grammar's."""
        constraint = sequence.constraint
        is_stop_token = token_id in sequence.stop_token_ids if constraint is None else constraint.ends_with(token_id)
        sequence.token_ids.append(token_id)
        forced: list[int] | None = []
        if is_stop_token:
            sequence.has_stop_token = True
            sequence.finish_reason = FinishReason.STOP
            if token_id in sequence.request.sampling_params.stop_ids:
                sequence.stop_reason = token_id
        elif constraint is not None:
            forced = constraint.advance(token_id, sequence.num_remaining_tokens)
        if forced is not None:
            self._append_forced(sequence, forced)
        return forced

    def _fail(
        self, sequence: Sequence, state: RequestState, error: str, cause: Exception | None = None
    ) -> AcceptedTokens:
        """Take a request out of the queues. Its outputs follow when this is processed."""
        for each in state.sequences:
            self._scheduler.remove(each)
        return AcceptedTokens(sequence, state, error=error, cause=cause)

    def _append_forced(self, sequence: Sequence, forced: list[int]) -> None:
        """Append tokens that need not be sampled, and see whether the sequence has ended."""
        sequence.token_ids += forced
        self._metrics.num_generated_tokens += len(forced)
        self._metrics.num_forced_tokens += len(forced)
        if sequence.finish_reason is None:
            if sequence.constraint is not None and sequence.constraint.is_finished:
                sequence.finish_reason = FinishReason.STOP
            elif sequence.num_remaining_tokens <= 0:
                sequence.finish_reason = FinishReason.LENGTH

    def _advance_beams(self, state: RequestState) -> list[AcceptedTokens]:
        if not beam_group.is_ready(state):
            return []
        try:
            choice = beam_group.choose(state, self._sequences)
        except Exception as cause:
            return [self._fail(state.sequences[0], state, _raised(cause), cause)]
        is_over = beam_group.go_on(state, choice, self._scheduler)
        if state.metrics.first_token_time is None:
            state.metrics.first_token_time = time.monotonic()
        self._metrics.num_generated_tokens += len(state.sequences)
        if not is_over:
            return []
        assert state.beam_search is not None
        constraint = state.sequences[0].constraint
        error = None if constraint is None or state.beam_search.hypotheses else constraint.dead_end
        return [AcceptedTokens(state.sequences[0], state, error=error)]


def _raised(cause: Exception) -> str:
    return f"its constraint raised {cause!r}"
