"""One contract for every schedule policy, and what each promises beyond it."""

from __future__ import annotations

import pytest

from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.policies.lpm import AGING_TOKENS
from ramet.runtime.policies.registry import SCHEDULE_POLICIES


def tokens(first: int, length: int) -> list[int]:
    return [(first + 7 * idx) % 99 for idx in range(length)]


@pytest.mark.parametrize("policy", SCHEDULE_POLICIES)
def test_every_policy_serves_all_within_the_budgets(make_engine, request_of, run, policy):
    outputs = {}
    for attempt in range(2):
        engine = make_engine(
            num_blocks=12,
            schedule_policy=policy,
            max_num_batched_tokens=16,
            max_num_seqs=5,
            schedule_conservativeness=0,
        )
        for idx in range(20):
            engine.add_request(request_of(str(idx), tokens(idx % 4, 20 + idx), max_tokens=12, priority=idx % 3))
        outputs[attempt] = run(engine)
        for batch in engine.runner.batches:
            assert sum(num_tokens for _, _, num_tokens in batch) <= 16
            assert len(batch) <= 5
    assert len(outputs[0]) == 20
    texts = [[outputs[attempt][str(idx)].outputs[0].text for idx in range(20)] for attempt in range(2)]
    assert texts[0] == texts[1]


def order_of_service(engine, num_requests: int) -> list[str]:
    served: list[str] = []
    while engine.has_work:
        engine.step()
        for name, _, _ in engine.runner.batches[-1]:
            if name not in served:
                served.append(name)
    assert len(served) == num_requests
    return served


def test_lpm_serves_the_longest_cached_prefix_first(make_engine, request_of, run):
    engine = make_engine(max_num_seqs=1, schedule_policy="lpm")
    engine.add_request(request_of("warm", tokens(1, 64), max_tokens=1))
    run(engine)
    for name, prompt in (("cold", tokens(50, 40)), ("short", tokens(1, 20)), ("long", tokens(1, 60))):
        engine.add_request(request_of(name, [*prompt, 3], max_tokens=1))
    assert order_of_service(engine, 3) == ["long", "short", "cold"]


def test_fcfs_serves_in_order_of_arrival(make_engine, request_of, run):
    engine = make_engine(max_num_seqs=1, schedule_policy="fcfs")
    engine.add_request(request_of("warm", tokens(1, 64), max_tokens=1))
    run(engine)
    for name, prompt in (("cold", tokens(50, 40)), ("short", tokens(1, 20)), ("long", tokens(1, 60))):
        engine.add_request(request_of(name, [*prompt, 3], max_tokens=1))
    assert order_of_service(engine, 3) == ["cold", "short", "long"]


def test_priority_serves_lower_values_first_and_takes_blocks_from_the_highest(make_engine, request_of, run):
    engine = make_engine(max_num_seqs=1, schedule_policy="priority")
    for name, priority in (("later", 2), ("sooner", 1), ("sooner too", 1), ("first", -5)):
        engine.add_request(request_of(name, tokens(len(name), 5), max_tokens=1, priority=priority))
    assert order_of_service(engine, 4) == ["first", "sooner", "sooner too", "later"]

    engine = make_engine(num_blocks=6, schedule_policy="priority", schedule_conservativeness=0.0)
    for name, priority in (("unimportant", 9), ("important", 0)):
        engine.add_request(request_of(name, tokens(len(name), 30), max_tokens=34, priority=priority, ignore_eos=True))
    outputs = run(engine)
    assert outputs["important"].metrics.num_preemptions == 0
    assert outputs["unimportant"].metrics.num_preemptions > 0


def test_a_cold_request_is_not_starved_by_hits(make_engine, request_of, run):
    engine = make_engine(num_blocks=100, max_num_seqs=1, schedule_policy="lpm")
    warm = tokens(1, 160)
    engine.add_request(request_of("warm", warm, max_tokens=1))
    run(engine)
    engine.add_request(request_of("cold", tokens(50, 40), max_tokens=1))
    served_before = 0
    for idx in range(100):
        engine.add_request(request_of(f"hit{idx}", [*warm, idx % 99], max_tokens=1))
        engine.step()
        if engine.runner.batches[-1][0][0] == "cold":
            break
        served_before += 1
    assert served_before <= 160 // AGING_TOKENS + 1


def test_an_unknown_policy_is_refused_with_the_list(make_engine):
    with pytest.raises(InvalidConfigError, match=r"'speed' is unknown; choose one of \['fcfs', 'lpm', 'priority'\]"):
        make_engine(schedule_policy="speed")
