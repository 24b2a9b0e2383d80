"""One contract for every schedule policy, and what each promises beyond it."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.policies import dfs_weight, lof, lpm, program
from ramet.runtime.policies.base import WaitingView
from ramet.runtime.policies.random_order import WINDOW
from ramet.runtime.policies.registry import SCHEDULE_POLICIES
from ramet.runtime.request_program import RequestProgram


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


def test_the_preempted_do_not_come_before_the_more_important(make_engine, request_of):
    engine = make_engine(num_blocks=6, schedule_policy="priority", reserve="none")
    for name, priority in (("unimportant", 9), ("important", 0)):
        engine.add_request(request_of(name, tokens(len(name), 30), max_tokens=34, priority=priority, ignore_eos=True))
    while engine.metrics.num_preemptions == 0:
        engine.step()
    engine.add_request(request_of("between", tokens(3, 30), max_tokens=34, priority=5, ignore_eos=True))
    finished = [chunk.request_id for _ in range(200) for chunk in engine.step() if chunk.output is not None]
    assert finished == ["important", "between", "unimportant"]


def test_lof_serves_the_longest_output_first(make_engine, request_of):
    engine = make_engine(max_num_seqs=1, schedule_policy="lof")
    for name, max_tokens in (("short", 20), ("long", 150), ("longer", 300), ("long too", 150)):
        engine.add_request(request_of(name, tokens(len(name), 5), max_tokens=max_tokens))
    assert order_of_service(engine, 4) == ["longer", "long", "long too", "short"]


def test_dfs_weight_goes_down_the_heavier_branch_first(make_engine, request_of, run):
    engine = make_engine(max_num_seqs=1, schedule_policy="dfs-weight")
    stem, light, heavy, deep = tokens(1, 32), tokens(40, 16), tokens(60, 16), tokens(80, 16)
    for name, prompt in (("a", stem + light), ("b", stem + heavy + deep)):
        engine.add_request(request_of(name, [*prompt, 98], max_tokens=1))
    run(engine)
    waiting = {
        "elsewhere": tokens(20, 20),
        "on the stem": [*stem, 1],
        "heavy": [*stem, *heavy, 3],
        "heavy too": [*stem, *heavy, 4],
        "light": [*stem, *light, 2],
        "deep": [*stem, *heavy, *deep, 5],
    }
    for name, prompt in waiting.items():
        engine.add_request(request_of(name, prompt, max_tokens=1))
    assert order_of_service(engine, 6) == ["deep", "heavy", "heavy too", "light", "on the stem", "elsewhere"]


def test_routing_key_serves_what_most_running_ones_are_of(make_engine, request_of):
    engine = make_engine(max_num_seqs=4, schedule_policy="routing-key")

    def add(name: str, key: str | None, max_tokens: int) -> None:
        engine.add_request(
            replace(request_of(name, [ord(name[-1]) % 99, 5], max_tokens=max_tokens, ignore_eos=True), routing_key=key)
        )

    for name, key, max_tokens in (("a1", "a", 50), ("b1", "b", 50), ("b2", "b", 50), ("no key", None, 2)):
        add(name, key, max_tokens)
    engine.step()
    for name, key in (("none", None), ("new", "c"), ("of A", "a"), ("of B", "b")):
        add(name, key, 2)
    served = []
    for _ in range(12):
        engine.step()
        served += [name for name, start, _ in engine.runner.batches[-1] if start == 0]
    assert served == ["of B", "of A", "none", "new"]


def test_random_is_a_shuffle_that_the_seed_repeats(make_engine, request_of):
    def order(seed: int) -> list[str]:
        engine = make_engine(max_num_seqs=1, schedule_policy="random")
        engine.scheduler.policy = SCHEDULE_POLICIES["random"](seed)
        for idx in range(30):
            engine.add_request(request_of(str(idx), [idx, 5], max_tokens=1))
        return order_of_service(engine, 30)

    arrivals = [str(idx) for idx in range(30)]
    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == sorted(arrivals) != order(1)


def test_random_overtakes_by_less_than_its_window():
    waiting = [SimpleNamespace(arrival_idx=idx) for idx in range(3 * WINDOW)]
    ranks = SCHEDULE_POLICIES["random"](3).ranks(WaitingView(waiting, [], [], 0, []))
    assert all(early < late for early, late in zip(ranks, ranks[WINDOW:], strict=False))
    assert any(early > late for early, late in zip(ranks, ranks[WINDOW // 2 :], strict=False))


def hostile_stream(policy: str, warm: list[int]) -> dict[str, object]:
    """What the policy likes better than a cold, short request without a key."""
    return {
        "lpm": {"prompt": warm},
        "dfs-weight": {"prompt": warm},
        "lof": {"prompt": [5], "max_tokens": 300},
        "routing-key": {"prompt": [5], "routing_key": "hot"},
        "random": {"prompt": [5]},
        "fcfs": {"prompt": [5]},
        "program": {"prompt": warm},
    }[policy]


MOST_OVERTAKINGS = {
    "lpm": 160 // lpm.AGING_TOKENS + 1,
    "dfs-weight": dfs_weight.MAX_OVERTAKEN,
    "lof": 300 // lof.AGING_TOKENS + 1,
    "routing-key": 2,
    "random": WINDOW,
    "fcfs": 0,
    "program": (2 * program.LEVEL_TOKENS + 160) // program.AGING_TOKENS + 1,
}


@pytest.mark.parametrize("policy", MOST_OVERTAKINGS)
def test_nobody_is_starved_by_an_endless_stream(make_engine, request_of, run, policy):
    """One arrival for each place, which the policy likes better. `priority` alone may starve, as asked."""
    engine = make_engine(num_blocks=200, max_num_seqs=2, schedule_policy=policy)
    warm = tokens(1, 160)
    engine.add_request(replace(request_of("warm", warm, max_tokens=1), program=RequestProgram("served")))
    run(engine)
    for record in engine.scheduler.programs._records.values():
        record.branches[()].num_served_tokens = 2 * program.FIRST_LEVEL_TOKENS  # is on level 2 with its next call
    engine.add_request(
        replace(request_of("always", [3], max_tokens=3_000, ignore_eos=True, stop_token_ids=()), routing_key="hot")
    )
    engine.step()
    liked = hostile_stream(policy, warm)

    def arrive(idx: int) -> None:
        prompt = [*liked["prompt"], idx % 99]
        request = request_of(f"hit{idx}", prompt, max_tokens=liked.get("max_tokens", 1))
        engine.add_request(replace(request, routing_key=liked.get("routing_key")))

    arrive(0)
    engine.add_request(replace(request_of("cold", tokens(50, 40), max_tokens=1), program=RequestProgram("served")))
    num_overtakings = 0
    for idx in range(1, 1_200):
        arrive(idx)
        engine.step()
        new = [name for name, start, _ in engine.runner.batches[-1] if name.startswith(("hit", "cold"))]
        if "cold" in new:
            break
        if idx > 1:
            num_overtakings += len(new)
        engine.abort_request(next(iter(set(new)), ""))
    else:
        raise AssertionError("starved")
    assert num_overtakings <= MOST_OVERTAKINGS[policy] + 1


def test_a_long_queue_is_ranked_like_a_short_one(make_engine, request_of, run):
    """No length beyond which the policy becomes another one: the last of a thousand is found."""
    engine = make_engine(num_blocks=200, max_num_seqs=1, schedule_policy="lpm")
    warm = tokens(1, 64)
    engine.add_request(request_of("warm", warm, max_tokens=1))
    run(engine)
    draw = random.Random(0)
    for idx in range(1_000):
        engine.add_request(request_of(f"cold{idx}", [draw.randrange(99) for _ in range(20)], max_tokens=1))
    engine.add_request(request_of("hit", [*warm, 9], max_tokens=1))
    engine.step()
    assert engine.runner.batches[-1][0][0] == "hit"


def test_an_unknown_policy_is_refused_with_the_list(make_engine):
    names = r"\['dfs-weight', 'fcfs', 'lof', 'lpm', 'priority', 'program', 'random', 'routing-key'\]"
    with pytest.raises(InvalidConfigError, match=rf"'speed' is unknown; choose one of {names}"):
        make_engine(schedule_policy="speed")
