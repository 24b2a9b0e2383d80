"""What holds for the plan of every step, whatever arrives, under every schedule policy."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ramet.runtime.policies.registry import SCHEDULE_POLICIES
from ramet.runtime.request_program import RequestProgram

from .plan_checker import BRANCHES, MAX_PROMPT_LEN, MAX_TOKENS, PlanChecker, check_queues


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
