"""The engine's thread and the handles others hold."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ramet.runtime import engine_loop as engine_loop_module
from ramet.runtime.engine_loop import EngineLoop
from ramet.runtime.errors import EngineStoppedError, InvalidRequestError, RequestAbortedError, RequestFailedError


@pytest.fixture
def loop(make_engine):
    loop = EngineLoop(make_engine(num_blocks=200))
    yield loop
    loop.shutdown()


def test_requests_from_many_threads_all_end(loop, request_of):
    outputs = {}

    def ask(idx: int) -> None:
        handle = loop.submit(request_of(str(idx), [idx, idx + 1, idx + 2], ignore_eos=True))
        outputs[idx] = handle.result(timeout=30)

    threads = [threading.Thread(target=ask, args=(idx,)) for idx in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outputs) == list(range(20))
    assert all(len(output.outputs[0].token_ids) == 8 for output in outputs.values())


def test_a_stream_started_late_or_twice_begins_at_the_beginning(loop, request_of):
    handle = loop.submit(request_of("a", [1, 2], ignore_eos=True))
    output = handle.result(timeout=30)
    for _ in range(2):
        chunks = list(handle.stream())
        assert [token for chunk in chunks for token in chunk.token_ids] == output.outputs[0].token_ids
        assert "".join(chunk.text for chunk in chunks) == output.outputs[0].text
        assert chunks[-1].output is output


def test_abort_ends_the_stream_with_the_error(loop, request_of):
    handle = loop.submit(request_of("a", [1, 2], ignore_eos=True, max_tokens=2000))
    stream = handle.stream()
    next(stream)
    handle.abort()
    with pytest.raises(RequestAbortedError, match="a was aborted"):
        for _ in stream:
            pass
    with pytest.raises(RequestAbortedError):
        handle.result(timeout=30)
    assert loop.call(lambda engine: engine.cache.num_private_blocks) == 0
    handle.abort()


def test_timeout_leaves_the_request_running(loop, request_of):
    handle = loop.submit(request_of("a", [1, 2], ignore_eos=True, max_tokens=1000))
    with pytest.raises(TimeoutError, match="a did not finish within 0"):
        handle.result(timeout=0)
    handle.abort()


def test_a_bad_request_in_a_group_refuses_the_group(loop, request_of):
    with pytest.raises(InvalidRequestError):
        loop.submit_many([request_of("a", [1]), request_of("b", [])])
    assert loop.submit(request_of("a", [1])).result(timeout=30).finished


def test_a_duplicate_id_fails_the_newcomer_only(loop, request_of):
    first = loop.submit(request_of("a", [1, 2], ignore_eos=True, max_tokens=1000))
    second = loop.submit(request_of("a", [1, 2]))
    with pytest.raises(InvalidRequestError, match="already in use"):
        second.result(timeout=30)
    first.abort()


def test_done_callbacks_run_once_and_their_errors_are_contained(loop, request_of, caplog):
    seen = []
    handle = loop.submit(request_of("a", [1]))
    handle.add_done_callback(lambda done: 1 / 0)
    handle.add_done_callback(lambda done: seen.append(done.request.request_id))
    handle.result(timeout=30)
    loop.call(lambda engine: None)
    try:
        handle.add_done_callback(lambda done: seen.append("late"))
    finally:
        assert seen == ["a", "late"]
    assert loop.submit(request_of("b", [1])).result(timeout=30).finished


def test_a_follower_gets_every_chunk_once_whenever_it_comes(loop, request_of):
    early, late = [], []
    handle = loop.submit(request_of("a", [1, 2], ignore_eos=True, max_tokens=60))
    handle.add_chunk_callback(early.append)
    handle.result(timeout=30)
    handle.add_chunk_callback(late.append)
    loop.call(lambda engine: None)
    assert early == late == list(handle.stream())
    assert len(early) == 60


def test_call_returns_values_and_raises_errors(loop):
    assert loop.call(lambda engine: engine.cache.num_blocks) == 200
    with pytest.raises(ZeroDivisionError):
        loop.call(lambda engine: 1 // 0)


def test_a_failed_step_is_the_requests_error(loop, request_of):
    def break_next_step(engine) -> None:
        engine.runner.fail_next = RuntimeError("broken kernel")

    loop.call(break_next_step)
    handle = loop.submit(request_of("a", [1]))
    with pytest.raises(RequestFailedError, match="broken kernel"):
        list(handle.stream())
    assert loop.submit(request_of("b", [1])).result(timeout=30).finished


def test_shutdown_ends_what_runs_and_refuses_what_comes(make_engine, request_of):
    loop = EngineLoop(make_engine())
    handle = loop.submit(request_of("a", [1, 2], ignore_eos=True, max_tokens=900))
    loop.shutdown()
    loop.shutdown()
    with pytest.raises(EngineStoppedError, match="a ended with the engine"):
        handle.result(timeout=30)
    with pytest.raises(EngineStoppedError):
        loop.submit(request_of("b", [1]))
    with pytest.raises(EngineStoppedError):
        loop.call(lambda engine: None)


def test_a_step_that_does_not_end_is_cut_short_by_shutdown(make_engine, request_of, monkeypatch):
    monkeypatch.setattr(engine_loop_module, "_PATIENCE_SECONDS", 0.01)
    engine = make_engine()
    has_begun, is_cut = threading.Event(), threading.Event()

    def never_ends(block_copies, parts):
        has_begun.set()
        assert is_cut.wait(30)
        raise RuntimeError("the other processes are gone")

    engine.runner._run = never_ends
    loop = EngineLoop(engine)
    handle = loop.submit(request_of("a", [1, 2]))
    assert has_begun.wait(30)
    loop.shutdown(cut_short=is_cut.set)
    with pytest.raises(EngineStoppedError, match="a ended with the engine"):
        handle.result(timeout=30)


def test_a_broken_engine_hangs_nobody(make_engine, request_of):
    engine = make_engine()
    loop = EngineLoop(engine)

    def break_scheduler() -> None:
        raise AssertionError("impossible")

    engine.scheduler.schedule = break_scheduler
    handle = loop.submit(request_of("a", [1]))
    with pytest.raises(EngineStoppedError, match="impossible"):
        handle.result(timeout=30)
    with pytest.raises(EngineStoppedError):
        loop.submit(request_of("b", [1]))


def test_what_comes_in_just_behind_a_message_that_breaks_the_engine_is_not_lost(make_engine, request_of):
    engine = make_engine()
    loop = EngineLoop(engine)
    gate = threading.Event()
    order: list[str] = []

    def close(close=engine.close) -> None:
        order.append("closed")
        close()

    engine.close = close

    def break_down(engine) -> None:
        raise AssertionError("impossible")

    loop.ask(lambda engine: gate.wait(30))
    loop.tell(break_down)
    handles = loop.submit_many([request_of("a", [1]), request_of("b", [1])])
    answer = loop.ask(lambda engine: order.append("asked"))
    gate.set()
    for handle in handles:
        with pytest.raises(EngineStoppedError, match="impossible"):
            handle.result(timeout=30)
    answer.result(timeout=30)
    loop.shutdown()
    assert order == ["asked", "closed"]


@pytest.mark.model
def test_a_forked_process_is_told_and_ends():
    """In a process of its own, whose threads are not those of the test run."""
    program = """
import os, sys
from ramet import EngineStoppedError, LLM, SamplingParams
llm = LLM("smollm2")
handle = llm.submit("Once", SamplingParams(max_tokens=60, ignore_eos=True))
if os.fork() == 0:
    try:
        llm.generate("Hi")
    except EngineStoppedError as error:
        print(error, flush=True)
    sys.exit(0)
_, status = os.wait()
print(status, len(handle.result().outputs[0].token_ids))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.splitlines() == [
        "the engine runs in the parent process; create an LLM in each process that needs one",
        "0 60",
    ], result.stderr


def test_callbacks_may_use_the_engine_but_not_wait_for_it(loop, request_of, caplog):
    seen: dict[str, object] = {}
    second_done = threading.Event()

    def callback(done) -> None:
        seen["freed"] = loop.call(lambda engine: engine.reset_prefix_cache())
        second = loop.submit(request_of("second", [1, 2]))
        second.add_done_callback(lambda handle: second_done.set())
        for wait in (second.result, lambda: list(second.stream())):
            try:
                wait()
            except RuntimeError as error:
                seen.setdefault("errors", []).append(str(error))
        sys.exit(1)

    loop.submit(request_of("first", [1])).add_done_callback(callback)
    assert second_done.wait(timeout=30)
    assert len(seen["errors"]) == 2
    assert "cannot wait there for request second" in seen["errors"][0]
    assert loop.submit(request_of("third", [1])).result(timeout=30).finished


def test_a_question_that_is_withdrawn_is_not_asked(loop, request_of):
    gate, asked = threading.Event(), []
    first = loop.ask(lambda engine: gate.wait(10))
    withdrawn = loop.ask(asked.append)
    assert withdrawn.cancel()
    gate.set()
    assert first.result(10)
    assert loop.ask(lambda engine: engine.has_work).result(10) is False
    assert asked == []
    assert loop.submit(request_of("a", [1, 2, 3])).result(10).finished


def test_a_loop_that_was_shut_down_answers_no_questions(make_engine):
    loop = EngineLoop(make_engine())
    loop.shutdown()
    with pytest.raises(EngineStoppedError):
        loop.ask(lambda engine: None)
