"""The trace of a real engine: it says what the runner was given, and what became of every sequence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ramet.runtime.batch import WaitReason
from ramet.runtime.trace import SequenceName, Trace

IS_OVERLAPPING = pytest.mark.parametrize("overlap_schedule", [False, True])
EACH_ORDER = pytest.mark.parametrize("overlap_schedule", [False, True, "pipelined"])


def prompt(length: int, salt: int) -> list[int]:
    return [(7 * idx * idx + salt) % 90 for idx in range(length)]


def traced(engine: Any, run: Callable[..., Any], requests: list[Any]) -> Trace:
    recorder = engine.start_trace("fake")
    for request in requests:
        engine.add_request(request)
    run(engine)
    engine.close()
    trace: Trace = recorder.trace
    return trace


def check(trace: Trace, engine: Any, requests: list[Any]) -> None:
    """What holds in every trace."""
    computed = [[(part.request_id, part.start, part.num_new_tokens) for part in step.parts] for step in trace]
    assert computed == engine.runner.batches
    names = {SequenceName(request.request_id, idx) for request in requests for idx in range(request.sampling_params.n)}
    ended = Counter(finished.name for step in trace for finished in step.finished)
    assert ended == dict.fromkeys(names, 1)
    admitted = Counter(name for step in trace for name in step.admitted)
    preempted = Counter(name for step in trace for name in step.preempted)
    assert admitted == Counter(names) + preempted
    has_ended: set[SequenceName] = set()
    for step_idx, step in enumerate(trace):
        assert step.step_idx == step_idx
        assert 0 < step.num_tokens <= engine.config.max_num_batched_tokens
        assert len(step.parts) <= step.num_running <= engine.config.max_num_seqs
        assert {part.name for part in step.parts if part.num_cached_tokens is not None} == set(step.admitted)
        waiting = {each.name: each for each in step.waiting}
        running = {part.name for part in step.parts}
        assert not running & waiting.keys()
        for each in step.waiting:
            assert each.reason in set(WaitReason)
            assert (each.waits_for is not None) == (each.reason in ("prefix", "behind"))
            if each.reason == "behind":
                assert waiting[each.waits_for].reason in ("room", "budget")
        memory = step.memory
        assert memory.num_free_blocks + memory.num_tree_blocks + memory.num_private_blocks == memory.num_blocks
        assert 0 <= memory.num_used_blocks <= memory.num_table_blocks
        assert 0 <= memory.num_held_tokens <= memory.num_used_blocks * engine.config.block_size
        assert all(part.is_wasted for part in step.parts if part.name in has_ended)
        has_ended |= {finished.name for finished in step.finished}
        assert set(step.phase_seconds) == {"intake", "schedule", "forward", "sample", "commit"}
        assert min(step.phase_seconds.values()) >= 0


@IS_OVERLAPPING
def test_the_figure_of_iteration_level_scheduling_takes_eight_steps(
    make_engine: Any, run: Any, request_of: Any, tmp_path: Path, overlap_schedule: bool
) -> None:
    sizes = {"A": (20, 6), "B": (14, 4), "C": (30, 8), "D": (12, 3)}
    requests = [
        request_of(name, prompt(length, salt), max_tokens=count, ignore_eos=True)
        for salt, (name, (length, count)) in enumerate(sizes.items())
    ]
    engine = make_engine(max_num_seqs=3, overlap_schedule=overlap_schedule)
    trace = traced(engine, run, requests)
    check(trace, engine, requests)
    assert len(trace) == 8
    assert [sorted(part.request_id for part in step.parts) for step in trace] == [
        *[["A", "B", "C"]] * 4,
        *[["A", "C", "D"]] * 2,
        ["C", "D"],
        ["C"],
    ]
    assert [[(each.name.request_id, each.reason) for each in step.waiting] for step in trace] == [
        [("D", "seats")]
    ] * 4 + [[]] * 4
    assert [[str(finished.name) for finished in step.finished] for step in trace[3:]] == [
        ["B/0"],
        [],
        ["A/0"],
        ["D/0"],
        ["C/0"],
    ]
    trace.save_jsonl(tmp_path / "trace.jsonl")
    assert Trace.load_jsonl(tmp_path / "trace.jsonl") == trace
    trace.save_timeline(tmp_path / "trace.svg")
    ElementTree.parse(tmp_path / "trace.svg")


@EACH_ORDER
def test_a_shared_prefix_is_waited_for_found_and_held_once(
    make_engine: Any, run: Any, request_of: Any, overlap_schedule: bool
) -> None:
    requests = [request_of(f"r{idx}", prompt(96, 1) + prompt(9, idx), ignore_eos=True) for idx in range(4)]
    engine = make_engine(max_num_batched_tokens=64, overlap_schedule=overlap_schedule)
    trace = traced(engine, run, requests)
    check(trace, engine, requests)
    assert [(name.request_id, source.request_id) for name, source in trace[0].waiting_for_prefix] == [
        ("r1", "r0"),
        ("r2", "r0"),
        ("r3", "r0"),
    ]
    cached = {
        part.request_id: part.num_cached_tokens for step in trace for part in step.parts if part.num_cached_tokens
    }
    assert cached.keys() == {"r1", "r2", "r3"}
    assert min(cached.values()) >= 64
    assert any(step.memory.num_table_blocks > step.memory.num_used_blocks for step in trace)
    assert "hit rate" in trace.summary()


@EACH_ORDER
def test_preemption_and_another_admission_are_seen(
    make_engine: Any, run: Any, request_of: Any, overlap_schedule: bool
) -> None:
    requests = [request_of(f"r{idx}", prompt(16, idx), max_tokens=40, ignore_eos=True) for idx in range(3)]
    engine = make_engine(num_blocks=7, schedule_conservativeness=0.0, overlap_schedule=overlap_schedule)
    trace = traced(engine, run, requests)
    check(trace, engine, requests)
    assert sum(len(step.preempted) for step in trace) == engine.scheduler.num_preemptions > 0
    assert {each.reason for step in trace if step.preempted for each in step.waiting} == {"room"}
    again = [part for step in trace for part in step.parts if part.is_recomputed]
    assert again
    assert {part.name for part in again} <= {name for step in trace for name in step.preempted}


@EACH_ORDER
def test_every_ending_has_its_reason(make_engine: Any, run: Any, request_of: Any, overlap_schedule: bool) -> None:
    requests = [
        request_of("long", prompt(20, 1), max_tokens=5, ignore_eos=True),
        request_of("short", prompt(20, 2), max_tokens=5, n=2, temperature=1.0, ignore_eos=True),
        request_of("bad", prompt(20, 3), max_tokens=5),
    ]
    engine = make_engine(overlap_schedule=overlap_schedule)
    engine.runner.nan_for.add("bad")
    trace = traced(engine, run, requests)
    check(trace, engine, requests)
    reasons = {str(finished.name): finished.reason for step in trace for finished in step.finished}
    assert reasons == {"long/0": "length", "short/0": "length", "short/1": "length", "bad/0": "error"}


@pytest.mark.parametrize(("overlap_schedule", "num_wasted"), [(True, 1), ("pipelined", 2)])
def test_a_stop_string_wastes_a_step_of_its_sequence_or_two(
    make_engine: Any, run: Any, request_of: Any, overlap_schedule: bool, num_wasted: int
) -> None:
    free = make_engine(overlap_schedule=False)
    free.add_request(request_of("a", prompt(20, 1), max_tokens=12, ignore_eos=True))
    text = run(free)["a"].outputs[0].text
    requests = [
        request_of("a", prompt(20, 1), max_tokens=12, ignore_eos=True, stop=text[5]),
        request_of("b", prompt(20, 2), max_tokens=12, ignore_eos=True),
    ]
    engine = make_engine(overlap_schedule=overlap_schedule)
    trace = traced(engine, run, requests)
    check(trace, engine, requests)
    wasted = [(part.request_id, step.step_idx) for step in trace for part in step.parts if part.is_wasted]
    (end,) = [step.step_idx for step in trace if any(ended.name.request_id == "a" for ended in step.finished)]
    assert wasted == [("a", end + 1 + idx) for idx in range(num_wasted)]


def test_a_trace_begins_and_ends_between_steps(make_engine: Any, run: Any, request_of: Any) -> None:
    engine = make_engine()
    engine.add_request(request_of("a", prompt(20, 1), max_tokens=8, ignore_eos=True))
    engine.step()
    engine.step()
    before = sum(engine.metrics.phase_seconds.values())
    recorder = engine.start_trace("fake")
    for _ in range(3):
        engine.step()
    engine.stop_trace(recorder)
    after = sum(engine.metrics.phase_seconds.values())
    run(engine)
    assert [step.parts[0].start for step in recorder.trace] == [21, 22, 23]
    assert sum(step.seconds for step in recorder.trace) == pytest.approx(after - before)


def ends(trace: Trace) -> list[list[tuple[str, str | None]]]:
    return [[(finished.name.request_id, finished.reason) for finished in step.finished] for step in trace]


@IS_OVERLAPPING
def test_a_step_that_cannot_be_prepared_is_recorded_in_its_turn(
    make_engine: Any, run: Any, request_of: Any, overlap_schedule: bool
) -> None:
    engine = make_engine(overlap_schedule=overlap_schedule, max_num_seqs=2)
    prepare, num_steps = engine.runner.prepare, 0

    def fail_third(batch: Any) -> Any:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 3:
            raise RuntimeError("no memory")
        return prepare(batch)

    engine.runner.prepare = fail_third
    requests = [request_of(name, prompt(20, salt), max_tokens=4, ignore_eos=True) for salt, name in enumerate("abc")]
    recorder = engine.start_trace("fake")
    for request in requests:
        engine.add_request(request)
    outputs = run(engine)
    engine.close()
    trace = recorder.trace
    assert [step.step_idx for step in trace] == list(range(len(trace)))
    ran = [sorted({part.request_id for part in step.parts}) for step in trace[:6]]
    assert ran == [["a", "b"]] * 3 + [["a"], ["a"], ["b"]]
    assert [{part.is_wasted for part in step.parts} for step in trace[:6]] == [{False}] * 2 + [{True}] + [{False}] * 3
    assert {waiting.reason for step in trace[3:5] for waiting in step.waiting} <= {"trial", "seats"}
    assert {reason for step in ends(trace) for _, reason in step} == {"length"}
    assert [len(outputs[name].outputs[0].token_ids) for name in "abc"] == [4, 4, 4]


@IS_OVERLAPPING
@pytest.mark.parametrize("is_stopped", [False, True])
def test_an_abort_that_no_step_follows_is_in_the_trace(
    make_engine: Any, run: Any, request_of: Any, overlap_schedule: bool, is_stopped: bool
) -> None:
    """It is noted with the last step, also if the trace ends before the engine has carried it out."""
    engine = make_engine(overlap_schedule=overlap_schedule)
    recorder = engine.start_trace("fake")
    engine.add_request(request_of("a", prompt(20, 1), max_tokens=50, ignore_eos=True))
    for _ in range(3):
        engine.step()
    engine.abort_request("a")
    if is_stopped:
        engine.stop_trace(recorder)
    run(engine)
    engine.close()
    assert ends(recorder.trace) == [[], [], [("a", "abort")]]


@EACH_ORDER
def test_traces_may_be_nested(make_engine: Any, run: Any, request_of: Any, overlap_schedule: bool) -> None:
    engine = make_engine(overlap_schedule=overlap_schedule)
    engine.add_request(request_of("a", prompt(20, 1), max_tokens=9, ignore_eos=True))
    outer = engine.start_trace("outer")
    for _ in range(2):
        engine.step()
    inner = engine.start_trace("inner")
    for _ in range(3):
        engine.step()
    engine.stop_trace(inner)
    engine.stop_trace(inner)
    run(engine)
    engine.close()
    starts = [step.parts[0].start for step in outer.trace]
    assert starts == [0, *range(20, 28)]
    assert [step.parts[0].start for step in inner.trace] == (starts[2:5])
    assert [step.step_idx for step in inner.trace] == [0, 1, 2]
