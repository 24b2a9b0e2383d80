"""The overlap scheduler: the next step runs while the last one's results are processed, and nobody can tell."""

from __future__ import annotations

import threading

import pytest

from ramet.runtime.engine_loop import EngineLoop
from ramet.runtime.errors import RequestAbortedError, RequestFailedError
from ramet.runtime.outputs import FinishReason


def tokens(first: int, length: int) -> list[int]:
    return [(first + 7 * idx) % 99 for idx in range(length)]


def cached_paths(engine) -> set[tuple[int, ...]]:
    """Every token list that the tree holds from its root to the end of a node or of a partial leaf."""
    paths = set()
    for node in engine.cache.tree.nodes():
        prefix: tuple[int, ...] = ()
        ancestor = node
        while ancestor is not None:
            prefix = (*ancestor.token_ids, *prefix)
            ancestor = ancestor.parent
        paths.add(prefix)
        paths |= {(*prefix, *leaf) for leaf in node.leaves}
    return paths


def test_the_next_step_runs_while_results_are_delivered(make_engine, request_of):
    """Each step ends only after the token of the step before has reached the caller: without overlap that is never."""
    engine = make_engine(overlap_schedule=True)
    num_delivered = 0
    arrived = threading.Condition()
    run_step = engine.runner._run
    num_steps = 0

    def run_and_wait(*args):
        nonlocal num_steps
        num_steps += 1
        with arrived:
            assert arrived.wait_for(lambda: num_delivered >= num_steps - 1, timeout=20)
        return run_step(*args)

    engine.runner._run = run_and_wait

    def deliver(chunk):
        nonlocal num_delivered
        with arrived:
            num_delivered += 1
            arrived.notify()

    loop = EngineLoop(engine)
    handle = loop.submit(request_of("a", tokens(1, 5), max_tokens=6, ignore_eos=True))
    handle.add_chunk_callback(deliver)
    output = handle.result(timeout=60)
    loop.shutdown()
    assert len(output.outputs[0].token_ids) == 6
    assert num_steps == 6


def test_a_stop_string_wastes_one_step_and_leaves_no_trace(make_engine, request_of, run):
    outputs, engines = {}, {}
    plain = make_engine(num_blocks=200)
    plain.add_request(request_of("a", tokens(1, 30), max_tokens=40, ignore_eos=True))
    (output,) = run(plain).values()
    stop = output.outputs[0].text[20:22]
    for is_overlapping in (False, True):
        engine = make_engine(num_blocks=200, overlap_schedule=is_overlapping)
        for idx in range(3):
            engine.add_request(request_of(str(idx), tokens(1, 30), max_tokens=40, ignore_eos=True, stop=stop))
        outputs[is_overlapping] = run(engine)
        engines[is_overlapping] = engine
    for name, output in outputs[False].items():
        assert output.outputs == outputs[True][name].outputs
        assert output.outputs[0].finish_reason is FinishReason.STOP
        assert output.outputs[0].text == plain_text_before(stop, output)
    assert engines[False].metrics.num_wasted_tokens == 0
    assert engines[True].metrics.num_wasted_tokens == 3
    assert cached_paths(engines[False]) == cached_paths(engines[True])
    assert engines[True].cache.num_private_blocks == 0


def plain_text_before(stop: str, output) -> str:
    assert stop not in output.outputs[0].text
    return output.outputs[0].text


@pytest.mark.parametrize(
    "ending", [{"max_tokens": 5, "ignore_eos": True}, {"max_tokens": 60}, {"max_tokens": 60, "stop_token_ids": [3, 50]}]
)
def test_lengths_and_stop_tokens_waste_nothing(make_engine, request_of, run, ending):
    engine = make_engine(num_blocks=200, overlap_schedule=True, eos_bias=2.0)
    for idx in range(8):
        engine.add_request(request_of(str(idx), tokens(idx, 20), **ending))
    outputs = run(engine)
    assert len(outputs) == 8
    assert engine.metrics.num_wasted_tokens == 0


def test_a_stop_string_at_the_last_token_is_a_stop(make_engine, request_of, run):
    plain = make_engine()
    plain.add_request(request_of("a", tokens(1, 9), max_tokens=6, ignore_eos=True))
    (output,) = run(plain).values()
    engine = make_engine(overlap_schedule=True)
    engine.add_request(
        request_of("a", tokens(1, 9), max_tokens=6, ignore_eos=True, stop=output.outputs[0].text[-1:], min_tokens=6)
    )
    (stopped,) = run(engine).values()
    assert stopped.outputs[0].finish_reason is FinishReason.STOP
    assert engine.metrics.num_wasted_tokens == 0


def test_a_request_aborted_in_flight_is_gone_at_once(make_engine, request_of, run):
    engine = make_engine(overlap_schedule=True)
    engine.add_request(request_of("a", tokens(1, 20), max_tokens=40, ignore_eos=True))
    engine.add_request(request_of("b", tokens(50, 20), max_tokens=12, ignore_eos=True))
    for _ in range(4):
        engine.step()
    assert engine._in_flight
    engine.abort_request("a")
    chunks = engine.step()
    (last,) = [chunk for chunk in chunks if chunk.request_id == "a"]
    assert isinstance(last.output.error, RequestAbortedError)
    assert engine.metrics.num_wasted_tokens == 1
    assert [sequence.request.request_id for sequence in engine.scheduler.running] == ["b"]
    assert len(run(engine)["b"].outputs[0].token_ids) == 12
    assert engine.cache.num_private_blocks == 0


def test_a_step_that_fails_in_flight_fails_its_requests_only(make_engine, request_of, run):
    engine = make_engine(overlap_schedule=True)
    engine.add_request(request_of("a", tokens(1, 20), max_tokens=40, ignore_eos=True))
    engine.step()
    engine.step()
    engine.runner.fail_next = RuntimeError("injected")
    outputs = {}
    for _ in range(2):
        for chunk in engine.step():
            if chunk.output is not None:
                outputs[chunk.request_id] = chunk.output
    assert isinstance(outputs["a"].error, RequestFailedError)
    engine.add_request(request_of("b", tokens(50, 20), max_tokens=12, ignore_eos=True))
    assert run(engine)["b"].error is None
    assert engine.cache.num_private_blocks == 0
