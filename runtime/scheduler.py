"""Scheduler: which sequences run in the next step, and how many tokens of each.

There is no prefill phase and no decode phase. A pass goes through three groups against one token budget:

    1. running sequences with one token to compute (decodes): all of them, always, so none ever stalls;
    2. running sequences with more (prompts being chunked, recompute): from what is left (Sarathi-Serve, section 4);
    3. waiting sequences, in the policy's order, from what is left then (Orca, iteration-level scheduling).

When a running sequence finds no block, not even by eviction, the policy names a victim; it is freed and goes back to
the queue, to recompute what the tree no longer holds. The victim is the latest arrival (under `priority` the least
important one), so the oldest always goes on, and each preemption makes room for an older sequence that computes at
least a token in that very step: everything ends.

`EngineConfig.batching` has what came before, to compare with: `_plan_prefill_first` and `_plan_request_level`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from ..radix.expectations import Expectation
from ..radix.prefix_cache import BlockCopy, PrefixCache, PrefixMatch
from .admission import AdmissionControl, warn_of_preemption
from .batch import Batch, ScheduledSequence, WaitReason
from .config import EngineConfig
from .policies.base import SchedulePolicy
from .policies.registry import make_policy
from .prefix_waits import PrefixWaits
from .programs import Programs
from .prompt_logprobs import usable_match
from .sequence import Sequence, SequenceStatus
from .step_plan import StepPlan, plan_part
from .suspects import Suspects
from .tiers.prefix_tiers import PrefixTiers
from .waiting_queue import WaitingQueue


class _ResultsNeededError(Exception):
    """The plan cannot go on without the results of the step in flight."""


class Scheduler:
    """Owns the waiting and the running sequences; asks the prefix cache for blocks.

    Args:
        tiers: keep blocks that the pool cannot; None: there are none.

    Attributes:
        waiting: sequences without blocks.
        running: sequences with blocks, in order of admission; a fork stands right behind its parent.
        programs: what is known of the programs that the sequences belong to.
        suspects: requests of steps that failed, which are tried in steps of their own.
        num_preemptions: over the scheduler's life.
    """

    def __init__(self, config: EngineConfig, cache: PrefixCache, tiers: PrefixTiers | None = None) -> None:
        self.config = config
        self.cache = cache
        self._tiers = tiers or PrefixTiers(cache)
        seed = random.getrandbits(63) if config.seed is None else config.seed
        self.policy: SchedulePolicy = make_policy(config.schedule_policy, seed)
        self.admission = AdmissionControl(cache.block_size, config.reserve, config.schedule_conservativeness)
        self.waiting = WaitingQueue(cache)
        self.running: list[Sequence] = []
        self.programs = Programs(
            cache,
            is_tracking=config.is_program_aware,
            keeps_prefixes=config.keeps_program_prefixes,
            keeps_open=config.keep_open_programs,
        )
        self.suspects = Suspects()
        self.num_preemptions = 0
        self._plan_step = {
            "continuous": self._plan_continuous,
            "prefill-first": self._plan_prefill_first,
            "request-level": self._plan_request_level,
        }[config.batching]
        self._fork_copies: dict[Sequence, list[BlockCopy]] = {}
        self._is_ahead = False
        # Each running sequence needs a token and a row of logits in every step; more than that would stall decodes.
        self._max_num_running = min(config.max_num_seqs, config.max_num_batched_tokens, config.max_num_logit_rows)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that never ran. O(tokens)."""
        self.programs.on_arrival(sequence)
        self.waiting.add(sequence)
        self._tiers.expect(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence ended (finished, aborted or failed): free its blocks. Its cached prefix stays in the tree."""
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
            self._tiers.on_end(sequence)
            # What the partial blocks of a thousand branches hold is not worth a block each; one has the prompt's end.
            keeps_tail = sequence.branch is None or sequence.sample_idx == 0
            self._release(sequence, self.programs.on_end(sequence), keeps_tail=keeps_tail)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
            self.programs.on_withdrawal(sequence)
        sequence.status = SequenceStatus.FINISHED
        self.suspects.drop_cleared()

    def put_back(self, sequence: Sequence) -> None:
        """A running sequence loses its blocks and waits, to compute again what the tree does not hold of it then."""
        sequence.num_lost_tokens = max(sequence.num_lost_tokens, sequence.num_computed_tokens)
        self.running.remove(sequence)
        self._release(sequence, self.programs.on_preemption(sequence))
        sequence.status = SequenceStatus.WAITING
        self.waiting.add_returning(sequence)

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        """Let `child`, which begins with the tokens computed for `parent`, run beside it on shared blocks.

        The copies this takes are carried out with the next batch.

        Returns:
            False if there was no block or no place for it, or the parent does not run: then the child waits, ahead of
            all who never ran.
        """
        child.program_branch = parent.program_branch
        opened = None
        if parent.block_table is not None and len(self.running) < self._max_num_running:
            opened = self.cache.fork(parent.block_table, child.token_ids)
        if opened is None:
            child.num_lost_tokens = parent.num_computed_tokens or parent.num_lost_tokens
            self.waiting.add_returning(child)
            return False
        child.block_table, self._fork_copies[child] = opened
        child.status = SequenceStatus.RUNNING
        self.running.insert(self.running.index(parent) + 1, child)
        return True

    def schedule(self) -> Batch:
        """Plan one step. Mutates the queues and the cache; every sequence in the plan has blocks for its tokens."""
        if not self.running:
            self.admission.on_idle()
        step = StepPlan(self.config)
        self.suspects.drop_cleared()
        if self.suspects:
            self._plan_trial(step)
        else:
            self._plan_step(step)
        while not step.batch.scheduled and self.running:
            # All that run wait for something that does not: beams for a sibling, which finds no blocks.
            self._preempt(step)
            self._admit_waiting(step)
        if step.batch.scheduled:
            for sequence, copies in self._fork_copies.items():
                step.batch.forked.append(sequence)
                step.batch.block_copies += copies
            self._fork_copies.clear()
        return step.batch

    def schedule_ahead(self) -> Batch | None:
        """Plan the step after one in flight, whose tokens are pending: see `Sequence.num_in_flight_tokens`.

        Returns:
            None if that takes the results of the step in flight: all that is left depends on them, somebody would be
            preempted, though one may be about to end, or suspects are tried. Running sequences may have got more room
            then, for tokens that they will have; nothing else has changed, for nobody is admitted before all who run
            are planned.
        """
        if self.suspects:
            return None
        ratio = self.admission.new_token_ratio
        self._is_ahead = True
        try:
            return self.schedule()
        except _ResultsNeededError:
            self.admission.new_token_ratio = ratio
            return None
        finally:
            self._is_ahead = False

    # -- modes of batching -----------------------------------------------------------------------------------------

    def _plan_continuous(self, step: StepPlan) -> None:
        self._schedule_prompts(self._schedule_decodes(step), step)
        if not step.batch.preempted:
            self._admit_waiting(step)
            self.admission.on_step()

    def _plan_prefill_first(self, step: StepPlan) -> None:
        """Prompts alone, whole ones where they fit in a step, and decodes when there are none (vLLM before chunks)."""
        self._schedule_prompts([sequence for sequence in self.running if sequence.num_unplanned_tokens > 1], step)
        if not step.batch.preempted:
            self._admit_waiting(step, is_whole=True)
            self.admission.on_step()
        if not step.batch.scheduled:
            self._schedule_decodes(step)

    def _plan_request_level(self, step: StepPlan) -> None:
        """Nobody joins before all who began together have ended (what Orca is compared with)."""
        if self.running:
            self._schedule_prompts(self._schedule_decodes(step), step)
            if self._admit_siblings(step):
                step.stop(WaitReason.BATCHING)
        else:
            self._admit_waiting(step)

    def _plan_trial(self, step: StepPlan) -> None:
        """Suspects, or the others that run; by turns, as far as there is something to plan. Nobody joins either."""
        for _ in range(2):
            self.suspects.take_turns()
            self._schedule_prompts(self._schedule_decodes(step), step)
            self._admit_waiting(step)
            if step.batch.scheduled:
                return
        self.suspects.is_trial = True  # whoever must yield now does so for them

    # -- running sequences -----------------------------------------------------------------------------------------

    def _schedule_decodes(self, step: StepPlan) -> list[Sequence]:
        """Plan all that have one token to compute; return those with more. Nothing else may be planned yet.

        They fit in the step's limits, for no more run than that. With room in the last block there is nothing to ask.
        """
        scheduled = step.batch.scheduled
        block_size = self.cache.block_size
        longer: list[Sequence] = []
        running = self.running.copy()
        for sequence in filter(self.suspects.may_run, running) if self.suspects else running:
            table = sequence.block_table
            if table is None:  # became a victim earlier in this pass
                continue
            start, num_tokens = table.num_computed_tokens, len(sequence.token_ids)
            if sequence.num_in_flight_tokens:
                start += sequence.num_in_flight_tokens
                if sequence.pending_row >= 0:
                    if sequence.num_remaining_tokens <= 1:  # the pending token is its last
                        continue
                    num_tokens += 1
            if num_tokens - start != 1:
                longer.append(sequence)
            elif num_tokens <= len(table.block_ids) * block_size or self._make_room(sequence, num_tokens, step):
                scheduled.append(ScheduledSequence(sequence, start, 1, 0))
        step.count_decodes()
        return longer

    def _schedule_prompts(self, sequences: Iterable[Sequence], step: StepPlan) -> None:
        """Plan what fits of sequences with more than one token to compute. Some have none: beams wait for siblings."""
        for sequence in sequences:
            table = sequence.block_table
            if table is None:
                continue
            start = table.num_computed_tokens + sequence.num_in_flight_tokens
            if start == sequence.num_tokens:
                continue
            is_alone = len(self.running) == 1 and not self.waiting
            part = plan_part(sequence, start, step, self.config, is_alone=is_alone)
            if part is not None and self._make_room(sequence, part.end, step):
                step.take(part)

    def _make_room(self, sequence: Sequence, num_tokens: int, step: StepPlan) -> bool:
        """Give a running sequence room for that many tokens, whoever must yield; False if it became a victim itself."""
        table = sequence.block_table
        assert table is not None
        while not self.cache.extend(table, num_tokens):
            self._preempt(step)
            if sequence.block_table is None:
                return False
        return True

    # -- waiting sequences -----------------------------------------------------------------------------------------

    def _admit_waiting(self, step: StepPlan, *, is_whole: bool = False) -> None:
        """Start waiting sequences, in the policy's order, until one does not fit.

        Args:
            is_whole: only such as can be computed whole in what is left of the step; the first one in any case.
        """
        if not self.waiting or self._is_full(step) or not self._admit_siblings(step) or self._is_full(step):
            return
        if self.suspects:
            step.stop(WaitReason.TRIAL)
            return
        waits = PrefixWaits(self.cache, self.running)
        self.admission.begin_pass(self.running)
        self._tiers.begin_pass()
        passed_over = step.batch.waiting_for_prefix
        for sequence, watch in self.waiting.in_order(self.policy, self.running, waits, passed_over):
            source = waits.known_source(sequence, watch)
            if source is None:
                cached, usable = usable_match(sequence, self.cache, watch)
                source = waits.find_source(sequence, watch, cached, usable)
            if source is not None:
                passed_over.append((sequence, source))
                continue
            if self.running and not self._has_room(sequence, usable):
                step.stop(WaitReason.ROOM, sequence)
                return
            restored = self._tiers.restored(sequence, usable)
            if restored is None:
                step.stop(WaitReason.LOADING, sequence)
                return
            if not self._admit(sequence, restored, step, is_whole=is_whole) or self._is_full(step):
                return
            waits.add(sequence)

    def _admit_siblings(self, step: StepPlan) -> bool:
        """Start the waiting beams whose siblings run, before everybody else: those hold blocks and wait for them. And
        in a trial all who are part of it.

        Returns:
            Whether all of them were started; if not, nobody else should take the blocks.
        """
        suspects = self.suspects
        waiting = [
            each for each in self.waiting.returning if (each.is_beam or suspects.is_trial) and suspects.may_run(each)
        ]
        searches = {id(sequence.request) for sequence in self.running if sequence.is_beam} if waiting else set[int]()
        for sequence in waiting:
            if (suspects.is_trial or id(sequence.request) in searches) and (
                self._is_full(step) or not self._admit(sequence, usable_match(sequence, self.cache)[1], step)
            ):
                return False
        return True

    def _is_full(self, step: StepPlan) -> bool:
        """Whether nobody else can start in this step; if so, that is why all others wait."""
        if step.num_seqs <= 0 or len(self.running) >= self._max_num_running:
            step.stop(WaitReason.SEATS)
        elif step.is_full:
            step.stop(WaitReason.BUDGET)
        else:
            return False
        return True

    def _has_room(self, sequence: Sequence, match: PrefixMatch) -> bool:
        num_matched = len(match.block_ids)
        num_newly_locked = num_matched - self.cache.num_locked_blocks(match)
        return self.admission.has_room(sequence, num_matched, num_newly_locked, self.cache.num_available_blocks)

    def _admit(self, sequence: Sequence, match: PrefixMatch, step: StepPlan, *, is_whole: bool = False) -> bool:
        """Give a waiting sequence its first blocks and a place in the step. False: it does not fit now."""
        is_alone = not self.running and len(self.waiting) == 1
        part = plan_part(sequence, match.num_tokens, step, self.config, is_alone=is_alone)
        if part is None or (is_whole and step.batch.scheduled and part.end < sequence.num_tokens):
            step.stop(WaitReason.BUDGET, sequence)
            return False
        request = sequence.request
        acquired = self.cache.acquire(
            sequence.token_ids,
            match,
            part.end,
            namespace=request.cache_namespace,
            priority=-request.priority,  # requests count down, eviction counts up
            retention=tuple(request.retention),
        )
        if acquired is None:
            assert self.running, f"{sequence} fits nowhere although nothing runs"
            step.stop(WaitReason.ROOM, sequence)
            return False
        sequence.block_table, block_copies = acquired
        assert sequence.block_table.num_computed_tokens == part.start
        sequence.status = SequenceStatus.RUNNING
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(match.num_tokens, sequence.num_prompt_tokens)
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self.programs.on_admission(sequence)
        self.admission.on_admission(sequence)
        step.take(part)
        step.batch.admitted.append(sequence)
        step.batch.block_copies += block_copies
        return True

    # -- preemption ------------------------------------------------------------------------------------------------

    def _preempt(self, step: StepPlan) -> None:
        """Free the policy's victim, which may be in this plan already. With a beam go its siblings: they need it."""
        if self._is_ahead:
            raise _ResultsNeededError
        victim = self.policy.victim(self.running)
        victims = [victim]
        if victim.is_beam:
            victims = [other for other in self.running if other.is_beam and other.request is victim.request]
        self.admission.on_preemption(self.running)
        step.drop(victims)
        step.stop(WaitReason.ROOM)
        for sequence in victims:
            self.put_back(sequence)
            sequence.num_preemptions += 1
            self.num_preemptions += 1
            step.batch.preempted.append(sequence)
            warn_of_preemption(sequence, self.num_preemptions)

    def _release(self, sequence: Sequence, expectation: Expectation | None, *, keeps_tail: bool = True) -> None:
        assert sequence.block_table is not None
        self.cache.release(sequence.block_table, keeps_tail=keeps_tail, expectation=expectation)
        sequence.block_table = None
        self._fork_copies.pop(sequence, None)
