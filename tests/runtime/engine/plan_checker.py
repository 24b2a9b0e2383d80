"""PlanChecker: what holds for the plan of every step, and check_queues: what holds between them."""

from __future__ import annotations

from collections import Counter

from ramet.runtime.policies.dfs_weight import MAX_OVERTAKEN
from ramet.runtime.policies.lof import AGING_TOKENS as LOF_AGING
from ramet.runtime.policies.lpm import AGING_TOKENS as LPM_AGING
from ramet.runtime.policies.program import AGING_TOKENS as PROGRAM_AGING
from ramet.runtime.policies.program import LEVEL_TOKENS, MAX_LEVEL
from ramet.runtime.policies.random_order import WINDOW

BRANCHES = [(), (), (0,), (1,), (0, 1)]
"""Of programs, as often as requests come from them."""
MAX_PROMPT_LEN, MAX_TOKENS = 90, 40

OVERTAKINGS = {
    "fcfs": lambda engine, max_waiting: 0,
    "lpm": lambda engine, max_waiting: MAX_PROMPT_LEN // LPM_AGING + max_waiting,
    "lof": lambda engine, max_waiting: MAX_TOKENS // LOF_AGING + max_waiting,
    "dfs-weight": lambda engine, max_waiting: MAX_OVERTAKEN + max_waiting,
    "routing-key": lambda engine, max_waiting: engine.config.max_num_seqs + max_waiting,
    "random": lambda engine, max_waiting: WINDOW,
    "program": lambda engine, max_waiting: (MAX_LEVEL + 1) * LEVEL_TOKENS // PROGRAM_AGING + max_waiting,
}
"""How often a policy lets later arrivals be first at most, for a queue that was never longer than max_waiting."""


def branches_of(programs):
    return [branch for record in programs._records.values() for branch in record.branches.values()]


def check_queues(engine):
    """Tables, watches and queues agree; the cache adds up."""
    scheduler, cache = engine.scheduler, engine.cache
    cache.check_invariants()
    waiting = list(scheduler.waiting)
    assert all(sequence.block_table is not None for sequence in scheduler.running)
    assert all(sequence.block_table is None for sequence in waiting)
    assert len(set(waiting) | set(scheduler.running)) == len(waiting) + len(scheduler.running)
    assert len(cache.open_tables) == len(scheduler.running)
    num_new = len(waiting) - len(scheduler.waiting.returning)
    assert sum(len(group.members) for *_, group in cache.tree.watches.entries()) == num_new
    held = [sequence.expectation for sequence in waiting if sequence.expectation is not None]
    assert all(sequence.expectation is None for sequence in scheduler.running), "who runs needs no expectation"
    placed = [expectation for _, expectation in cache.expectations.entries()]
    known = [*held, *(branch.expectation for branch in branches_of(scheduler.programs) if branch.expectation)]
    assert len(placed) <= len(known)
    assert set(placed) <= set(known), "an expectation of nobody is left"


class PlanChecker:
    """Stands before an engine's scheduler and checks every plan as it is made."""

    def __init__(self, engine, policy: str) -> None:
        self.engine, self.policy = engine, policy
        self.plans: list[list[tuple[str, int, int, int]]] = []
        self.num_overtakings: Counter = Counter()
        self.max_waiting = 0
        self.num_preemptions = 0
        self._schedule = engine.scheduler.schedule
        engine.scheduler.schedule = self.schedule

    def schedule(self):
        scheduler = self.engine.scheduler
        was_running = list(scheduler.running)
        decodes = [
            sequence
            for sequence in was_running
            if sequence.num_unplanned_tokens == 1
            and not (sequence.pending_row >= 0 and sequence.num_remaining_tokens == 1)  # it ends with that token
        ]
        new = [sequence for sequence in scheduler.waiting if sequence not in scheduler.waiting.returning]
        returning = set(scheduler.waiting.returning)
        self.max_waiting = max(self.max_waiting, len(new))
        batch = self._schedule()
        self._check_limits(batch)
        if scheduler.suspects:
            self._check_trial(batch, returning)
            return batch
        scheduled = {part.sequence for part in batch.scheduled}
        preempted = set(batch.preempted)
        assert scheduled or not scheduler.has_work or scheduler._is_ahead, "nothing is planned although there is work"
        assert not (scheduler._is_ahead and preempted), "a pending token may be the last"
        assert all(sequence in scheduled or sequence in preempted for sequence in decodes), "a decode stalls"
        assert set(batch.admitted) <= scheduled
        self._check_victims(batch, was_running)
        self._count_overtakings(batch, new, returning)
        self.plans.append(
            [
                (part.sequence.request.request_id, part.sequence.sample_idx, part.start, part.end)
                for part in batch.scheduled
            ]
        )
        return batch

    def _check_trial(self, batch, returning) -> None:
        """Suspects run without the others, and nobody joins who never ran."""
        suspects = self.engine.scheduler.suspects
        self.num_preemptions += len(batch.preempted)
        assert batch.scheduled or not self.engine.scheduler.has_work, "nothing is tried although there is work"
        assert len({part.sequence.request.request_id in suspects.request_ids for part in batch.scheduled}) <= 1
        assert all(suspects.may_run(part.sequence) for part in batch.scheduled)
        assert set(batch.admitted) <= returning | set(batch.preempted)

    def _check_limits(self, batch) -> None:
        config = self.engine.config
        parts = batch.scheduled
        assert sum(part.num_new_tokens for part in parts) <= config.max_num_batched_tokens
        assert len(parts) <= config.max_num_seqs
        assert sum(part.num_logit_rows for part in parts) <= config.max_num_logit_rows
        assert len({part.sequence for part in parts}) == len(parts)
        for part in parts:
            table = part.sequence.block_table
            assert part.num_new_tokens > 0
            assert table.num_computed_tokens + part.sequence.num_in_flight_tokens == part.start
            assert part.end <= len(table.block_ids) * self.engine.cache.block_size

    def _check_victims(self, batch, was_running) -> None:
        """Each loses its blocks to an older one (a more important one, under `priority`) that advances in this step."""
        self.num_preemptions += len(batch.preempted)
        rank = (lambda s: (s.request.priority, s.arrival_idx)) if self.policy == "priority" else lambda s: s.arrival_idx
        for victim in batch.preempted:
            # Beams are as old as each other; a group that runs alone may have to yield to its own sibling.
            assert victim.is_beam or victim is not min(was_running, key=rank), "the oldest one is preempted"
            assert rank(victim) >= min(rank(part.sequence) for part in batch.scheduled)

    def _count_overtakings(self, batch, new, returning) -> None:
        passed_over = {waiter for waiter, _ in batch.waiting_for_prefix}
        left = [sequence for sequence in batch.admitted if sequence not in returning]
        for sequence in new:
            if sequence.block_table is None and not sequence.is_finished and sequence not in passed_over:
                later = sum(1 for other in left if other.arrival_idx > sequence.arrival_idx)
                if later:
                    self.num_overtakings[sequence] += later

    def check_bound(self) -> None:
        if self.policy == "priority":  # may starve, as asked
            return
        most = OVERTAKINGS[self.policy](self.engine, self.max_waiting)
        assert max(self.num_overtakings.values(), default=0) <= most
