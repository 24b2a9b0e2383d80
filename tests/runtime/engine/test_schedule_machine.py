"""A scheduler in any order of arrivals, steps, aborts, failures and hints that hypothesis thinks of."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from ramet.runtime.policies.registry import SCHEDULE_POLICIES
from ramet.runtime.request_program import RequestProgram

from .plan_checker import BRANCHES, PlanChecker, check_queues


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
