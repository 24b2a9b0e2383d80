"""A step that raises fails the request that it raises for, and no other: those end as if nothing had happened."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.runtime.errors import RequestFailedError, TensorParallelError
from ramet.runtime.request import Request
from ramet.runtime.sampler_numpy import NumpySampler
from ramet.sampling_params import SamplingParams

ORDERS = (False, True, "pipelined")
FOR_EVER = 1 << 30


def tokens(first: int, length: int) -> list[int]:
    return [(first + 7 * idx) % 90 for idx in range(length)]


def contents(output: Any) -> Any:
    """All of a request's result that may not depend on who else ran."""
    return (
        [replace(each, index=0) for each in output.outputs],
        output.prompt_logprobs,
        output.continuations,
        str(output.error),
    )


class PoisonedSampler(NumpySampler):
    """Raises for all rows if one is of a sequence that begins with these tokens, so many times.

    Attributes:
        num_times_by_prompt: so many times more.
    """

    def __init__(self) -> None:
        self.num_times_by_prompt: dict[tuple[int, ...], int] = {}

    def sample(self, logits, rows):
        for row in rows:
            for prompt, num_times in self.num_times_by_prompt.items():
                if num_times > 0 and tuple(row.token_ids[: len(prompt)]) == prompt:
                    self.num_times_by_prompt[prompt] -= 1
                    raise RuntimeError("poisoned sampler")
        return super().sample(logits, rows)


def poison(engine: Any, request: Request, num_times: int, place: str) -> None:
    if place == "sample":
        engine.poison.num_times_by_prompt[request.prompt_token_ids] = num_times
    else:
        engine.runner.fail(request.request_id, num_times, place)


@pytest.fixture(scope="module")
def make_poisonable(make_engine):
    def make(**options: Any) -> Any:
        sampler = PoisonedSampler()
        engine = make_engine(sampler=sampler, **options)
        engine.poison = sampler
        return engine

    return make


def check_left_nothing(engine: Any) -> None:
    assert not engine.has_work
    assert not engine.scheduler.suspects
    engine.cache.check_invariants()
    assert engine.cache.num_private_blocks == 0
    engine.cache.reset()
    assert engine.cache.num_free_blocks == engine.cache.num_blocks


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("place", ["prepare", "step", "end", "sample"])
@pytest.mark.parametrize("bad_idx", [0, 3, 6])
def test_only_the_request_that_a_step_fails_for_fails(make_poisonable, request_of, run, order, place, bad_idx):
    requests = [request_of(str(idx), tokens(idx, 20 + idx), max_tokens=9, ignore_eos=True) for idx in range(7)]
    outputs = []
    for num_times in (0, FOR_EVER):
        engine = make_poisonable(overlap_schedule=order)
        for request in requests:
            engine.add_request(request)
        for _ in range(4):
            engine.step()
        poison(engine, requests[bad_idx], num_times, place)
        outputs.append(run(engine))
        check_left_nothing(engine)
    good, disturbed = outputs
    bad = disturbed.pop(str(bad_idx))
    assert isinstance(bad.error, RequestFailedError)
    assert "poisoned" in str(bad.error)
    assert isinstance(bad.error.__cause__, RuntimeError)
    assert 0 < len(bad.outputs[0].token_ids) < 9
    assert disturbed
    for name, output in disturbed.items():
        assert contents(output) == contents(good[name])
    metrics = engine.metrics
    assert metrics.num_failed == 1
    assert 3 <= metrics.num_failed_steps <= 5  # pipelined, one more is in flight
    assert metrics.num_retried_sequences >= 7


@pytest.mark.parametrize("order", ORDERS)
def test_many_bad_requests_do_not_take_the_good_ones_with_them(make_engine, request_of, run, order):
    """However many fail one after another, with no step between them that succeeds."""
    engine = make_engine(overlap_schedule=order, num_blocks=200)
    bad = {str(idx) for idx in range(24)}
    for idx, name in enumerate((*sorted(bad), *(f"good {idx}" for idx in range(8)))):
        engine.add_request(request_of(name, tokens(idx, 9), max_tokens=6, ignore_eos=True))
        engine.runner.fail(name, FOR_EVER if name in bad else 0)
    outputs = run(engine)
    assert {name for name, output in outputs.items() if output.error is not None} == bad
    assert all(f"poisoned by {name}" in str(outputs[name].error) for name in bad)
    check_left_nothing(engine)


@pytest.mark.parametrize("order", ORDERS)
def test_a_cause_that_passes_costs_nobody(make_poisonable, request_of, run, order):
    """It is gone before anybody is alone with it."""
    outputs = []
    for num_times in (0, 3):
        engine = make_poisonable(overlap_schedule=order)
        requests = [request_of(str(idx), tokens(idx, 20), max_tokens=9, n=2, temperature=1.0) for idx in range(8)]
        for request in requests:
            engine.add_request(request)
        for _ in range(3):
            engine.step()
        poison(engine, requests[5], num_times, "end")
        outputs.append({name: contents(output) for name, output in run(engine).items()})
        check_left_nothing(engine)
        assert engine.runner.num_failed_steps == num_times
    assert outputs[0] == outputs[1]
    assert engine.metrics.num_failed == 0


def test_others_run_by_turns_with_those_that_are_tried(make_poisonable, request_of, run):
    """Those who have passed their trial go on, and a new request waits until all have."""
    engine = make_poisonable(max_num_batched_tokens=16, max_num_seqs=6)
    for idx in range(4):
        engine.add_request(request_of(f"short {idx}", tokens(idx, 3), max_tokens=30, ignore_eos=True))
    for _ in range(2):
        engine.step()
    engine.runner.fail("short 3", FOR_EVER)
    engine.step()
    assert set(engine.scheduler.suspects.request_ids) == {f"short {idx}" for idx in range(4)}
    engine.add_request(request_of("new", tokens(40, 60), max_tokens=3))
    engine.runner.batches.clear()
    outputs = run(engine)
    ran = [{request_id for request_id, *_ in batch} for batch in engine.runner.batches]
    pair = {"short 0", "short 1"}
    good = {*pair, "short 2"}
    assert ran[:6] == [pair, pair, pair, {"short 2"}, good, {*good, "new"}]
    assert [name for name, output in outputs.items() if output.error is not None] == ["short 3"]


def test_whoever_is_alone_with_those_who_computed_in_vain_is_tried_again(make_engine, request_of, run):
    """Pipelined, a step that was launched behind a failed one fails for the same request. "new" is in the second."""
    engine = make_engine(overlap_schedule="pipelined")
    for name in ("good", "bad"):
        engine.add_request(request_of(name, tokens(len(name), 9), max_tokens=12, ignore_eos=True))
    for _ in range(3):
        engine.step()
    engine.add_request(request_of("new", tokens(50, 9), max_tokens=12, ignore_eos=True))
    engine.step()
    engine.runner.fail("bad", FOR_EVER)
    outputs = run(engine)
    assert {name for name, output in outputs.items() if output.error is not None} == {"bad"}
    assert all(len(outputs[name].outputs[0].token_ids) == 12 for name in ("good", "new"))


def test_one_line_tells_who_is_tried_and_who_fails(make_poisonable, request_of, run, caplog):
    engine = make_poisonable()
    for name in ("good", "bad"):
        engine.add_request(request_of(name, tokens(len(name), 9)))
    engine.runner.fail("bad", FOR_EVER)
    with caplog.at_level(logging.WARNING):
        run(engine)
    messages = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in messages] == ["WARNING", "ERROR"]
    assert messages[0][1].endswith(": good, bad")
    assert messages[1][1].endswith(": bad")
    assert all("\n" not in message for _, message in messages)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["rank", "device", "unknown"])
def test_where_nothing_can_be_computed_all_fail(make_engine, request_of, run, monkeypatch, order, kind):
    cause = {
        "rank": TensorParallelError("rank 1 is gone"),
        "device": torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        "unknown": RuntimeError("bus error"),
    }[kind]
    engine = make_engine(overlap_schedule=order, num_blocks=200)
    for idx in range(40):
        engine.add_request(request_of(str(idx), tokens(idx, 9), max_tokens=20, ignore_eos=True))
    engine.step()
    engine.step()
    num_steps = 0

    def fail(batch: Any) -> Any:
        nonlocal num_steps
        num_steps += 1
        raise cause

    prepare = engine.runner.prepare
    monkeypatch.setattr(engine.runner, "prepare", fail)
    for idx in range(40, 50):
        engine.add_request(request_of(str(idx), tokens(idx, 9)))
    outputs = run(engine)
    assert len(outputs) == 50
    assert {type(output.error) for output in outputs.values()} == {RequestFailedError}
    assert {output.error.__cause__ for output in outputs.values()} == {cause}
    assert num_steps <= (2 * 50 if kind == "unknown" else 3)
    check_left_nothing(engine)
    monkeypatch.setattr(engine.runner, "prepare", prepare)  # should it work again, so does the engine
    for idx in range(3):
        engine.add_request(request_of(f"later {idx}", tokens(idx, 9), ignore_eos=True))
    assert all(output.error is None for output in run(engine).values())


def test_suspects_may_be_aborted_and_their_names_used_again(make_poisonable, request_of, run):
    engine = make_poisonable()
    requests = [request_of(str(idx), tokens(idx, 9), max_tokens=12, ignore_eos=True) for idx in range(4)]
    for request in requests:
        engine.add_request(request)
    engine.step()
    engine.runner.fail("2", 1)
    engine.step()
    assert len(engine.scheduler.suspects.request_ids) == 4
    for name in ("0", "2"):
        engine.abort_request(name)
    engine.step()
    engine.add_request(requests[0])
    outputs = run(engine)
    assert {name for name, output in outputs.items() if output.error is None} == {"0", "1", "3"}
    check_left_nothing(engine)


KINDS: list[dict[str, Any]] = [
    {},
    {"logprobs": 2},
    {"temperature": 1.0, "n": 3, "stop": ["a", "zz"]},
    {"temperature": 1.0, "best_of": 3, "n": 2},
    {"use_beam_search": True, "n": 2},
    {"use_beam_search": True, "n": 3, "regex": "[a-f]{3,9}"},
    {"prompt_logprobs": 1},
    {"regex": "(abc|abd)+[0-9]{2,6}(END)?", "on_incomplete": "close"},
    {"choices": ["yes", "no", "not", "A", "zz"], "temperature": 1.0},
    {"continuations": ((1, 2, 3), (1, 4), (5,), (1, 2, 6))},
]


def draw_request(data: Any, request_of: Any, idx: int) -> Request:
    """Any kind of request. Its first token is its own, so that a sampler can tell it, or one of three."""
    is_own = data.draw(st.booleans())
    stem = tokens(data.draw(st.integers(0, 2)), data.draw(st.integers(0, 24)))
    prompt = [*([90 + idx] if is_own else []), *stem, 40 + idx]
    kind = data.draw(st.sampled_from(KINDS))
    if "continuations" in kind:
        return Request(
            request_id=str(idx),
            prompt_token_ids=tuple(prompt),
            sampling_params=SamplingParams(),
            continuations=kind["continuations"],
        )
    fields = {"max_tokens": data.draw(st.integers(6, 20)), "seed": idx, "ignore_eos": False}
    return request_of(str(idx), prompt, **fields | kind)


def draw_options(data: Any) -> dict[str, Any]:
    return {
        "num_blocks": data.draw(st.integers(40, 70)),
        "block_size": 4,
        "max_num_batched_tokens": data.draw(st.sampled_from([6, 16, 64])),
        "max_num_seqs": data.draw(st.sampled_from([3, 6])),
        "batching": data.draw(st.sampled_from(["continuous", "prefill-first", "request-level"])),
        "reserve": data.draw(st.sampled_from(["estimate", "none"])),
        "schedule_conservativeness": data.draw(st.sampled_from([0.0, 1.0])),
        "enable_prefix_caching": data.draw(st.booleans()),
        "schedule_policy": data.draw(st.sampled_from(["lpm", "fcfs", "priority"])),
        "overlap_schedule": data.draw(st.sampled_from(ORDERS)),
    }


def check_poisoned_runs(data: Any, make_poisonable: Any, request_of: Any, run: Any) -> None:
    requests = [draw_request(data, request_of, idx) for idx in range(data.draw(st.integers(2, 7)))]
    places = st.sampled_from(["prepare", "step", "end", "sample"])
    counts = st.sampled_from([1, 2, FOR_EVER])
    poisoned = {
        request.request_id: (data.draw(counts), data.draw(places))
        for request in requests
        if data.draw(st.integers(0, 2)) == 0
    }
    delays = [data.draw(st.integers(0, 3)) for _ in requests]
    options = draw_options(data)
    engine = make_poisonable(eos_bias=1.0, **options)
    disturbed: dict[str, Any] = {}
    for request, delay in zip(requests, delays, strict=True):
        engine.add_request(request)
        if request.request_id in poisoned:
            poison(engine, request, *poisoned[request.request_id])
        for _ in range(delay):
            disturbed |= {chunk.request_id: chunk.output for chunk in engine.step() if chunk.output is not None}
    disturbed |= run(engine)
    check_left_nothing(engine)
    engine.close()
    assert disturbed.keys() == {request.request_id for request in requests}
    for request in requests:
        output = disturbed[request.request_id]
        num_times, place = poisoned.get(request.request_id, (0, ""))
        is_raised = output.error is not None and "poisoned" in str(output.error)
        assert not is_raised or num_times > 0
        if num_times == FOR_EVER and place != "sample":
            assert is_raised
        if not is_raised:
            alone = make_poisonable(eos_bias=1.0, **options | {"num_blocks": 70, "overlap_schedule": False})
            alone.add_request(request)
            assert contents(output) == contents(run(alone)[request.request_id])


@settings(max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True, deadline=None)
@given(data=st.data())
def test_whoever_is_not_poisoned_cannot_tell(make_poisonable, request_of, run, data):
    check_poisoned_runs(data, make_poisonable, request_of, run)


@pytest.mark.slow
@settings(max_examples=5_000, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.data())
def test_whoever_is_not_poisoned_can_never_tell(make_poisonable, request_of, run, data):
    check_poisoned_runs(data, make_poisonable, request_of, run)
