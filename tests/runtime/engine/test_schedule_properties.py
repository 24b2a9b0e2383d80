"""What holds for the plan of every step, whatever arrives, under every schedule policy."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ramet.runtime.policies.dfs_weight import MAX_OVERTAKEN
from ramet.runtime.policies.lof import AGING_TOKENS as LOF_AGING
from ramet.runtime.policies.lpm import AGING_TOKENS as LPM_AGING
from ramet.runtime.policies.program import AGING_TOKENS as PROGRAM_AGING
from ramet.runtime.policies.program import LEVEL_TOKENS, MAX_LEVEL
from ramet.runtime.policies.random_order import WINDOW
from ramet.runtime.policies.registry import SCHEDULE_POLICIES
from ramet.runtime.request_program import RequestProgram

MAX_PROMPT_LEN, MAX_TOKENS = 90, 40
BRANCHES = [(), (), (0,), (1,), (0, 1)]

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


class Traffic:
    """Draws requests that share prefixes: plain ones, parallel samples and beam searches."""

    def __init__(self, seed: int, capacity: int, request_of) -> None:
        self.random = random.Random(seed)
        self.capacity, self.request_of = capacity, request_of
        self.stems = [[self.random.randrange(99) for _ in range(MAX_PROMPT_LEN - 12)] for _ in range(4)]
        self.count = 0

    def request(self):
        draw = self.random
        self.count += 1
        stem = draw.choice(self.stems)[: draw.randrange(min(MAX_PROMPT_LEN - 12, self.capacity // 2))]
        prompt = stem + [draw.randrange(99) for _ in range(draw.randrange(1, 12))]
        room = self.capacity - len(prompt)
        fields = {
            "max_tokens": draw.randrange(1, min(room, MAX_TOKENS) + 1),
            "ignore_eos": draw.random() < 0.2,
            "priority": draw.randrange(3),
            "prompt_logprobs": draw.choice([None, None, None, 1]),
            "shared_prefix_len": draw.choice([0, len(stem)]),
        }
        if draw.random() < 0.1 and room > 60:
            fields |= {"n": 2, "use_beam_search": True, "prompt_logprobs": None, "max_tokens": draw.randrange(1, 9)}
        else:
            fields |= {"n": draw.choice([1, 1, 2, 4]), "temperature": 1.0, "seed": self.count}
        request = self.request_of(f"r{self.count}", prompt, **fields)
        program = draw.choice([None, *(RequestProgram(run, branch=draw.choice(BRANCHES)) for run in "abcde")])
        return replace(request, routing_key=draw.choice([None, "a", "b", "c"]), program=program)

    def hint(self, programs) -> None:
        """What a program may tell at any time, true or not."""
        draw = self.random
        run_id, branch = draw.choice("abcdef"), draw.choice(BRANCHES)
        match draw.randrange(5):
            case 0:
                programs.fork(run_id, branch, draw.randrange(2), draw.randrange(1, 4))
            case 1:
                programs.join(run_id, branch, [(*branch, 0), (*branch, 1)], draw.randrange(4))
            case 2 | 3:
                programs.expect(run_id, branch, draw.choice([None, 0, 1, 5]))
            case 4:
                programs.end(run_id)


def live(make_engine, request_of, policy: str, seed: int, num_steps: int = 300, **options):
    """A random life; the checker of its plans, all requests ended."""
    engine = make_engine(eos_bias=1.5, schedule_policy=policy, **options)
    checker = PlanChecker(engine, policy)
    traffic = Traffic(seed, options["num_blocks"] * engine.cache.block_size, request_of)
    alive: set[str] = set()
    for step_idx in range(100 * num_steps):
        if step_idx < num_steps and traffic.random.random() < 0.3 and len(alive) < 25:
            request = traffic.request()
            engine.add_request(request)
            alive.add(request.request_id)
        if traffic.random.random() < 0.2:
            traffic.hint(engine.scheduler.programs)
        if alive and traffic.random.random() < 0.03:
            engine.abort_request(traffic.random.choice(sorted(alive)))
        for chunk in engine.step():
            if chunk.output is not None:
                alive.remove(chunk.request_id)
        check_queues(engine)
        if step_idx >= num_steps and not alive:
            break
    assert not engine.has_work
    assert engine.cache.num_private_blocks == 0
    for run_id in "abcdef":
        engine.scheduler.programs.end(run_id)
    assert len(engine.scheduler.programs) == len(engine.cache.expectations) == 0
    return checker


@pytest.mark.parametrize("policy", SCHEDULE_POLICIES)
@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 64, "max_num_batched_tokens": 24, "max_num_seqs": 6},
        {"num_blocks": 10, "max_num_batched_tokens": 40, "max_num_seqs": 8, "schedule_conservativeness": 0.0},
        {"num_blocks": 14, "max_num_batched_tokens": 16, "max_num_logit_rows": 7, "reserve": "none"},
        {"num_blocks": 12, "max_num_batched_tokens": 30, "eviction_policy": "steps-to-execution", "reserve": "none"},
        {"num_blocks": 13, "max_num_batched_tokens": 30, "keep_open_programs": True, "schedule_conservativeness": 0.1},
    ],
    ids=["roomy", "tiny pool", "no reserve", "steps to execution", "keep open programs"],
)
def test_every_plan_keeps_every_promise(make_engine, request_of, policy, options):
    checker = live(make_engine, request_of, policy, seed=11, **options)
    checker.check_bound()
    if options["num_blocks"] < 64:
        assert checker.num_preemptions > 0
    else:
        assert policy in ("fcfs", "priority") or checker.num_overtakings


@pytest.mark.parametrize("policy", ["lpm", "priority", "program"])
def test_plans_with_pending_tokens_keep_every_promise_too(make_engine, request_of, policy):
    options = {"num_blocks": 11, "max_num_seqs": 8, "schedule_conservativeness": 0.0, "overlap_schedule": "pipelined"}
    checker = live(make_engine, request_of, policy, seed=11, **options)
    checker.check_bound()
    assert checker.num_preemptions > 0


@pytest.mark.parametrize("policy", SCHEDULE_POLICIES)
def test_the_same_requests_are_planned_in_the_same_way(make_engine, request_of, policy):
    options = {"num_blocks": 12, "max_num_batched_tokens": 24, "schedule_conservativeness": 0.2, "num_steps": 150}
    first, second = (live(make_engine, request_of, policy, seed=5, **options).plans for _ in range(2))
    assert first == second


@pytest.mark.parametrize("seed", range(3))
def test_reserve_max_never_preempts(make_engine, request_of, seed):
    """With shared prefixes, parallel samples, beams, and a pool full of what must be evicted first."""
    checker = live(make_engine, request_of, "lpm", seed, num_blocks=14, max_num_batched_tokens=24, reserve="max")
    assert checker.num_preemptions == 0
    assert checker.engine.cache.stats.num_evicted_blocks > 0


def family(seed: int) -> list[list[int]]:
    """Prompts whose common prefixes are whole blocks, and which part at once behind them."""
    draw = random.Random(seed)
    runs = [[[first, *(draw.randrange(99) for _ in range(15))] for first in range(3)] for _ in range(4)]
    prompts = []
    for idx in range(24):
        prompt = [token for level in range(draw.randrange(5)) for token in runs[level][draw.randrange(3)]]
        prompts.append([*prompt, 50 + idx, *(draw.randrange(99) for _ in range(draw.randrange(20)))])
    return prompts


def num_distinct_prefix_tokens(prompts: list[list[int]]) -> int:
    return len({tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)})


@pytest.mark.parametrize("policy", SCHEDULE_POLICIES)
@pytest.mark.parametrize("batched", [24, 4096])
def test_what_requests_share_is_computed_once(make_engine, request_of, run, policy, batched):
    prompts = family(seed=batched)
    engine = make_engine(num_blocks=400, schedule_policy=policy, max_num_batched_tokens=batched, max_num_seqs=24)
    for idx, prompt in enumerate(prompts):
        engine.add_request(request_of(str(idx), prompt, max_tokens=3, ignore_eos=True, priority=idx % 2))
    outputs = run(engine)
    computed = sum(output.metrics.num_computed_prompt_tokens for output in outputs.values())
    assert computed == num_distinct_prefix_tokens(prompts)
    assert engine.cache.stats.num_evicted_blocks == 0


def to_waiting(engine, request_of):
    engine.add_request(request_of("other", [7] * 5, max_tokens=60, ignore_eos=True))
    engine.step()
    engine.add_request(request_of("victim", list(range(40))))
    engine.step()


def to_chunked_prompt(engine, request_of):
    engine.add_request(request_of("victim", [idx % 90 for idx in range(100)]))
    engine.step()


def to_decoding(engine, request_of):
    engine.add_request(request_of("victim", list(range(10)), max_tokens=60, ignore_eos=True, n=2, temperature=1.0))
    for _ in range(20):
        engine.step()


def to_preempted(engine, request_of):
    engine.add_request(request_of("other", [7] * 70, max_tokens=90, ignore_eos=True))
    engine.add_request(request_of("victim", [8] * 40, max_tokens=90, ignore_eos=True))
    while engine.metrics.num_preemptions == 0:
        engine.step()


def to_deferred(engine, request_of):
    engine.add_request(request_of("other", [idx % 90 for idx in range(100)]))
    engine.step()
    engine.add_request(request_of("victim", [idx % 90 for idx in range(95)]))
    engine.step()
    assert [sequence.request.request_id for sequence in engine.scheduler.waiting] == ["victim"]


PHASES = {
    to_waiting: {"max_num_seqs": 1},
    to_chunked_prompt: {"max_num_batched_tokens": 16},
    to_decoding: {},
    to_preempted: {"num_blocks": 12, "reserve": "none"},
    to_deferred: {"max_num_batched_tokens": 16},
}


@pytest.mark.parametrize("policy", SCHEDULE_POLICIES)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_an_abort_frees_all_within_one_step(make_engine, request_of, policy, phase):
    engine = make_engine(schedule_policy=policy, **PHASES[phase])
    phase(engine, request_of)
    sequences = list(engine._requests["victim"].sequences)
    engine.abort_request("victim")
    engine.step()
    assert "victim" not in engine._requests
    assert all(sequence.block_table is None and sequence.is_finished for sequence in sequences)
    check_queues(engine)
    engine.abort_request("other")
    engine.step()
    engine.cache.reset()
    assert engine.cache.num_free_blocks == engine.cache.num_blocks


class SchedulerMachine(RuleBasedStateMachine):
    """Add, step, abort and reset in any order. `make_engine` and `request_of` are set by the test."""

    make_engine = None
    request_of = None

    @initialize(
        policy=st.sampled_from(sorted(SCHEDULE_POLICIES)),
        num_blocks=st.integers(6, 24),
        batched=st.integers(2, 40),
        reserve=st.sampled_from(["estimate", "max", "none"]),
        conservativeness=st.sampled_from([0.0, 0.3, 1.0]),
        threshold=st.sampled_from([0, 5]),
        eviction=st.sampled_from(["lru", "steps-to-execution"]),
        keeps_open=st.booleans(),
        overlap=st.sampled_from([False, "pipelined"]),
    )
    def begin(self, policy, num_blocks, batched, reserve, conservativeness, threshold, eviction, keeps_open, overlap):
        self.reserve = reserve
        self.engine = type(self).make_engine(
            num_blocks=num_blocks,
            block_size=4,
            schedule_policy=policy,
            max_num_batched_tokens=batched,
            max_num_seqs=min(batched, 6),
            reserve=reserve,
            schedule_conservativeness=conservativeness,
            long_prefill_token_threshold=threshold,
            eviction_policy=eviction,
            keep_open_programs=keeps_open,
            overlap_schedule=overlap,
        )
        self.checker = PlanChecker(self.engine, policy)
        self.alive: list[str] = []
        self.count = 0

    @rule(
        stem=st.integers(0, 2),
        stem_len=st.integers(0, 12),
        own=st.integers(0, 98),
        max_tokens=st.integers(1, 11),
        n=st.integers(1, 3),
        priority=st.integers(0, 2),
        is_beam=st.booleans(),
        run_id=st.sampled_from([None, "a", "b"]),
        branch=st.sampled_from(BRANCHES),
    )
    def add(self, stem, stem_len, own, max_tokens, n, priority, is_beam, run_id, branch):
        if len(self.alive) >= 8:
            return
        self.count += 1
        prompt = [*range(stem * 20, stem * 20 + stem_len), own]
        num_beams = min(n, self.engine.config.max_num_seqs)
        is_beam = is_beam and num_beams > 1 and self.engine.limits.max_beam_tokens(len(prompt), num_beams) >= max_tokens
        fields = {"use_beam_search": True, "n": num_beams} if is_beam else {"n": n, "temperature": 1.0, "seed": 1}
        request = type(self).request_of(
            f"r{self.count}",
            prompt,
            max_tokens=max_tokens,
            priority=priority,
            shared_prefix_len=stem_len,
            ignore_eos=True,
            **fields,
        )
        program = None if run_id is None else RequestProgram(run_id, branch=branch)
        self.engine.add_request(replace(request, routing_key=str(stem), program=program))
        self.alive.append(request.request_id)

    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps):
        for _ in range(num_steps):
            for chunk in self.engine.step():
                if chunk.output is not None:
                    self.alive.remove(chunk.request_id)
                    assert self.reserve != "max" or self.checker.num_preemptions == 0

    @rule(idx=st.integers(0, 7))
    def abort(self, idx):
        for request_id in self.alive[idx : idx + 1]:
            self.engine.abort_request(request_id)

    @rule(
        idx=st.integers(0, 7),
        num_times=st.sampled_from([1, 2, 1 << 30]),
        place=st.sampled_from(["prepare", "step", "end"]),
    )
    def fail(self, idx, num_times, place):
        for request_id in self.alive[idx : idx + 1]:
            self.engine.runner.fail(request_id, num_times, place)

    @rule(run_id=st.sampled_from("abc"), branch=st.sampled_from(BRANCHES), steps=st.sampled_from([None, 0, 1, 9]))
    def expect(self, run_id, branch, steps):
        self.engine.scheduler.programs.expect(run_id, branch, steps)

    @rule(run_id=st.sampled_from("abc"), branch=st.sampled_from(BRANCHES), num_branches=st.integers(1, 3))
    def fork(self, run_id, branch, num_branches):
        self.engine.scheduler.programs.fork(run_id, branch, 0, num_branches)

    @rule(run_id=st.sampled_from("abc"), branch=st.sampled_from(BRANCHES))
    def join(self, run_id, branch):
        self.engine.scheduler.programs.join(run_id, branch, [(*branch, 0)], 1)

    @rule(run_id=st.sampled_from("abc"))
    def end(self, run_id):
        self.engine.scheduler.programs.end(run_id)

    @rule()
    def reset(self):
        self.engine.reset_prefix_cache()

    @invariant()
    def agrees(self):
        check_queues(self.engine)

    def teardown(self):
        for _ in range(2_000):
            if self.engine.has_work:
                self.step(1)
        assert not self.engine.has_work
        assert not self.alive
        assert self.engine.cache.num_private_blocks == 0
        for run_id in "abc":
            self.end(run_id)
        assert len(self.engine.scheduler.programs) == len(self.engine.cache.expectations) == 0


def test_any_order_of_arrivals_steps_and_aborts(make_engine, request_of):
    machine = type(
        "BoundMachine",
        (SchedulerMachine,),
        {"make_engine": staticmethod(make_engine), "request_of": staticmethod(request_of)},
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
