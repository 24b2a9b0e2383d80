"""Scheduler: which sequences run in the next step, and how many tokens of each.

There is no prefill phase and no decode phase. A pass goes through three groups against one token budget:

    1. running sequences with one token to compute (decodes): all of them, always, so none ever stalls;
    2. running sequences with more (prompts being chunked, recompute): from what is left (Sarathi-Serve, section 4);
    3. waiting sequences, in the policy's order, from what is left then (Orca, iteration-level scheduling).

When a running sequence finds no block, not even by eviction, the policy names a victim; it is freed and goes back to
the front of the queue, to recompute what the tree no longer holds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..radix.prefix_cache import PrefixCache, PrefixMatch
from .admission import AdmissionControl
from .batch import Batch, ScheduledSequence
from .config import EngineConfig
from .policies.base import SchedulePolicy
from .policies.registry import make_policy
from .prompt_logprobs import cacheable_prefix_len
from .sequence import Sequence, SequenceStatus

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepBudget:
    """What a step may still take."""

    num_tokens: int
    num_seqs: int
    num_logit_rows: int

    def take(self, part: ScheduledSequence) -> None:
        self.num_tokens -= part.num_new_tokens
        self.num_seqs -= 1
        self.num_logit_rows -= part.num_logit_rows

    def give_back(self, part: ScheduledSequence) -> None:
        self.num_tokens += part.num_new_tokens
        self.num_seqs += 1
        self.num_logit_rows += part.num_logit_rows


class Scheduler:
    """Owns the waiting and the running sequences; asks the prefix cache for blocks.

    Attributes:
        waiting: sequences without blocks. Preempted ones stand at the front.
        running: sequences with blocks, in order of admission.
        num_preemptions: over the scheduler's life.
    """

    def __init__(self, config: EngineConfig, cache: PrefixCache) -> None:
        self.config = config
        self.cache = cache
        self.policy: SchedulePolicy = make_policy(config.schedule_policy)
        self.admission = AdmissionControl(cache.block_size, config.reserve, config.schedule_conservativeness)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        # Each running sequence needs a token and a row of logits in every step; more than that would stall decodes.
        self._max_num_running = min(config.max_num_seqs, config.max_num_batched_tokens, config.max_num_logit_rows)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence ended (finished, aborted or failed): free its blocks. Its cached prefix stays in the tree."""
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED

    def schedule(self) -> Batch:
        """Plan one step. Mutates the queues and the cache; every sequence in the plan has blocks for its tokens."""
        batch = Batch()
        budget = StepBudget(
            self.config.max_num_batched_tokens, self.config.max_num_seqs, self.config.max_num_logit_rows
        )
        longer: list[Sequence] = []
        for sequence in list(self.running):
            if sequence.num_uncomputed_tokens == 1:
                self._schedule_running(sequence, batch, budget)
            else:
                longer.append(sequence)
        for sequence in longer:
            self._schedule_running(sequence, batch, budget)
        if not batch.preempted:
            self._admit_waiting(batch, budget)
            self.admission.on_step()
        return batch

    def _schedule_running(self, sequence: Sequence, batch: Batch, budget: StepBudget) -> None:
        table = sequence.block_table
        if table is None:  # became a victim earlier in this pass
            return
        part = self._plan(sequence, table.num_computed_tokens, budget, is_alone=len(self.running) == 1)
        if part is None:
            return
        while not self.cache.extend(table, part.end):
            if self._preempt(batch, budget) is sequence:
                return
        batch.scheduled.append(part)
        budget.take(part)

    def _plan(self, sequence: Sequence, start: int, budget: StepBudget, *, is_alone: bool) -> ScheduledSequence | None:
        """How much of the sequence fits in what is left of the step; None if nothing does."""
        remaining = sequence.num_tokens - start
        num_new_tokens = min(remaining, budget.num_tokens)
        threshold = self.config.long_prefill_token_threshold
        if threshold and not is_alone:
            num_new_tokens = min(num_new_tokens, threshold)
        if not self.config.enable_chunked_prefill and num_new_tokens < remaining:
            return None
        first_logprob_row = max(0, sequence.next_prompt_logprob() - 1 - start)
        if first_logprob_row < remaining - 1:  # prompt logprobs: one row of logits per token
            num_new_tokens = min(num_new_tokens, first_logprob_row + budget.num_logit_rows)
        if num_new_tokens <= 0 or budget.num_seqs <= 0 or budget.num_logit_rows <= 0:
            return None
        last_row = num_new_tokens - 1 if num_new_tokens == remaining else num_new_tokens
        return ScheduledSequence(sequence, start, num_new_tokens, min(first_logprob_row, last_row))

    def _admit_waiting(self, batch: Batch, budget: StepBudget) -> None:
        if not self.waiting or budget.num_tokens <= 0 or budget.num_seqs <= 0:
            return
        if len(self.running) >= self._max_num_running:
            return
        for sequence in self._ordered_waiting():
            if budget.num_tokens <= 0 or budget.num_seqs <= 0 or len(self.running) >= self._max_num_running:
                return
            match = self._match(sequence)
            if self._is_worth_waiting(sequence, match):
                continue
            if not self._admit(sequence, match, batch, budget):
                return

    def _ordered_waiting(self) -> list[Sequence]:
        preempted = [sequence for sequence in self.waiting if sequence.num_preemptions]
        fresh = [sequence for sequence in self.waiting if not sequence.num_preemptions]
        preempted.sort(key=lambda sequence: sequence.arrival_idx)
        return preempted + self.policy.order(fresh, self._match_length)

    def _match_length(self, sequence: Sequence) -> int:
        return self._match(sequence).num_tokens

    def _match(self, sequence: Sequence) -> PrefixMatch:
        """The cached prefix it can use. The last token is always computed: its logits choose the next one."""
        match = self._cached_prefix(sequence)
        limit = cacheable_prefix_len(sequence, match, self.cache)
        if limit >= match.num_tokens:
            return match
        namespace = sequence.request.cache_namespace
        return self.cache.match(sequence.token_ids, namespace=namespace, max_tokens=limit)

    def _cached_prefix(self, sequence: Sequence) -> PrefixMatch:
        return self.cache.match(
            sequence.token_ids, namespace=sequence.request.cache_namespace, max_tokens=sequence.num_tokens - 1
        )

    def _is_worth_waiting(self, sequence: Sequence, match: PrefixMatch) -> bool:
        """A running sequence is about to compute more of this one's prefix: let it, and share the result.

        Never a deadlock: only running sequences have tables, and a running one advances or is preempted.
        """
        num_pending_tokens = match.num_pending_tokens
        if sequence.wants_prompt_logprobs:
            # What the other computes helps only if it notes prompt logprobs as well.
            match = self._cached_prefix(sequence)
            is_noted = any(
                other.block_table is match.pending_table and other.wants_prompt_logprobs for other in self.running
            )
            num_pending_tokens = max(num_pending_tokens, match.num_pending_tokens if is_noted else 0)
        if num_pending_tokens == 0:
            return False
        if num_pending_tokens >= self.cache.block_size:
            return True
        shared_prefix_len = min(sequence.request.shared_prefix_len, sequence.num_tokens - 1)
        return match.num_tokens < shared_prefix_len <= match.num_tokens + num_pending_tokens

    def _admit(self, sequence: Sequence, match: PrefixMatch, batch: Batch, budget: StepBudget) -> bool:
        """Give a waiting sequence its first blocks and a place in the step. False: it does not fit now."""
        part = self._plan(sequence, match.num_tokens, budget, is_alone=not self.running and len(self.waiting) == 1)
        if part is None:
            return False
        if self.running and not self._has_room(sequence, match):
            return False
        request = sequence.request
        # Requests count down, eviction counts up: what served an important request is kept longer.
        acquired = self.cache.acquire(
            sequence.token_ids, match, part.end, namespace=request.cache_namespace, priority=-request.priority
        )
        if acquired is None:
            assert self.running, f"{sequence} fits nowhere although nothing runs"
            return False
        sequence.block_table, block_copies = acquired
        assert sequence.block_table.num_computed_tokens == part.start
        sequence.status = SequenceStatus.RUNNING
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = match.num_tokens
        self.waiting.remove(sequence)
        for other in self.waiting:
            if other.arrival_idx < sequence.arrival_idx:
                other.num_overtaken += 1
        self.running.append(sequence)
        batch.scheduled.append(part)
        batch.admitted.append(sequence)
        batch.block_copies.extend(block_copies)
        budget.take(part)
        return True

    def _has_room(self, sequence: Sequence, match: PrefixMatch) -> bool:
        needed = self.admission.blocks_to_admit(sequence, len(match.block_ids))
        promised = self.admission.blocks_still_needed(self.running)
        # Matched blocks may be evictable now but will be locked: they are no room for anybody else.
        num_newly_locked = len(match.block_ids) - self.cache.num_locked_blocks(match)
        return needed + promised + num_newly_locked <= self.cache.num_available_blocks

    def _preempt(self, batch: Batch, budget: StepBudget) -> Sequence:
        """Free one running sequence, put it back at the front, and return it. It may already be in this plan."""
        victim = self.policy.victim(self.running)
        for part in batch.scheduled:
            if part.sequence is victim:
                batch.scheduled.remove(part)
                budget.give_back(part)
                break
        self.admission.on_preemption(self.running)
        self.running.remove(victim)
        self._release(victim)
        victim.status = SequenceStatus.WAITING
        victim.num_preemptions += 1
        self.waiting.insert(0, victim)
        batch.preempted.append(victim)
        self.num_preemptions += 1
        logger.warning(
            "Request %s (sample %d) is preempted by recompute because the KV cache has no free block "
            "(%d preemptions so far). Give the cache more memory (kv_cache_memory or num_blocks), or lower "
            "max_num_seqs or max_num_batched_tokens, or raise schedule_conservativeness.",
            victim.request.request_id,
            victim.sample_idx,
            self.num_preemptions,
        )
        return victim

    def _release(self, sequence: Sequence) -> None:
        assert sequence.block_table is not None
        self.cache.release(sequence.block_table)
        sequence.block_table = None
