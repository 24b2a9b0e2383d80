"""An abort frees what its request holds, wherever in its life it is."""

from __future__ import annotations

import pytest

from ramet.runtime.policies.registry import SCHEDULE_POLICIES

from .plan_checker import check_queues


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
