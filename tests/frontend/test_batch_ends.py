"""How a batch ends: with all items, at the first failure, at too many, interrupted, or handed out one by one."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.frontend.async_state import AsyncProgramState
from ramet.frontend.backend import GenerateCall
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.batch_results import BatchError, BatchResults
from ramet.frontend.errors import GenerationError, InvalidProgramError, ProgramCancelledError, ProgramError
from ramet.frontend.primitives import gen
from ramet.frontend.program import Program, function
from ramet.frontend.state import ProgramState


def echo(call: GenerateCall, prompt: str) -> str:
    if "poison" in prompt:
        raise RuntimeError(f"cannot read {prompt}")
    return f"<{prompt}>"


@function
def plain(s: ProgramState, question: str) -> None:
    s += question + gen("x")


@function
def reading(s: ProgramState, question: str) -> str:
    s += question + gen("x")
    return str(s["x"])


@function
async def coroutine(s: AsyncProgramState, question: str) -> str:
    s += question + gen("x")
    return str(await s["x"])


PROGRAMS = pytest.mark.parametrize("program", [plain, reading, coroutine])
QUESTIONS = [("a",), ("poison b",), ("c",), ("poison d",), ("e",)]


@PROGRAMS
def test_on_error_raise_ends_the_batch_at_the_first_failure(program: Program) -> None:
    with pytest.raises(BatchError, match=r"item 1 failed: .*cannot read poison b") as failure:
        program.run_batch(QUESTIONS, backend=MockBackend(echo), max_concurrency=1, on_error="raise")
    error = failure.value
    assert error.item_idx == 1
    assert isinstance(error.__cause__, ProgramError)
    assert error.results[0]["x"] == "<a>"
    assert isinstance(error.results[1].error(), ProgramError)
    for state in error.results[2:]:
        assert isinstance(state.error(), ProgramCancelledError)
        with pytest.raises(ProgramCancelledError, match="the batch ended before"):
            state["x"]
    assert (error.results.summary.num_items, error.results.summary.num_failed) == (5, 4)


@PROGRAMS
def test_max_failures_ends_the_batch_when_there_are_more(program: Program) -> None:
    backend = MockBackend(echo)
    assert len(program.run_batch(QUESTIONS, backend=backend, max_failures=2)) == 5
    with pytest.raises(BatchError, match="2 items failed, more than max_failures=1, of which item 1 was first"):
        program.run_batch(QUESTIONS, backend=backend, max_concurrency=1, max_failures=1)


def test_what_was_under_way_is_cancelled_when_a_batch_ends_early() -> None:
    backend = MockBackend(echo, mode="manual")

    async def main() -> BatchError:
        task = asyncio.create_task(coroutine.arun_batch(QUESTIONS, backend=backend, on_error="raise"))
        while len(backend.waiting) < 5:
            await asyncio.sleep(0)
        backend.answer(backend.waiting[1])
        with pytest.raises(BatchError) as failure:
            await task
        return failure.value

    error = asyncio.run(main())
    assert backend.waiting == ()
    assert isinstance(error.results[0].error(), ProgramCancelledError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "ignore"}, "on_error='ignore' is not allowed: use 'return' or 'raise'"),
        ({"max_failures": -1}, "max_failures=-1 is not allowed: give an integer of at least 0"),
        ({"max_failures": True}, "max_failures=True"),
        ({"max_failures": 3, "on_error": "raise"}, "not allowed with on_error='raise'"),
        ({"num_threads": 3, "max_concurrency": 3}, "the same argument, give max_concurrency"),
        ({"num_threads": 0}, "integer from 1 to 4096"),
        ({"retry_failed": 1}, "retry_failed=1 is not allowed"),
        ({"journal": 3}, "journal=3 is not allowed: give the path of a file"),
        ({"journal": ""}, "journal='' is not allowed"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(options: dict[str, Any], message: str) -> None:
    backend = MockBackend()
    with pytest.raises(InvalidProgramError, match=message):
        plain.run_batch([("a",)], backend=backend, **options)
    assert backend.requests == []


def test_num_threads_is_another_name() -> None:
    for num_threads in ("auto", 2):
        assert len(plain.run_batch([("a",)] * 3, backend=MockBackend(echo), num_threads=num_threads)) == 3


@PROGRAMS
def test_generator_style_hands_states_out_in_order(program: Program) -> None:
    states = program.run_batch(QUESTIONS, backend=MockBackend(echo), generator_style=True)
    assert not isinstance(states, list)
    shown = [state["x"] if state.error() is None else "failed" for state in states]
    assert shown == ["<a>", "failed", "<c>", "failed", "<e>"]
    assert list(program.run_batch([], backend=MockBackend(), generator_style=True)) == []


def test_generator_style_hands_out_before_the_rest_has_ended_and_can_be_left() -> None:
    backend = MockBackend(echo, mode="manual")
    states = reading.run_batch(QUESTIONS, backend=backend, generator_style=True)
    assert backend.requests == []
    first: list[ProgramState] = []
    thread = threading.Thread(target=lambda: first.append(next(states)))
    thread.start()
    wait_until(lambda: len(backend.waiting) == 5)
    backend.answer(next(request for request in backend.waiting if request.prompt == "a"))
    thread.join(60)
    assert first[0]["x"] == "<a>"
    states.close()  # type: ignore[attr-defined]
    assert backend.waiting == ()


def test_generator_style_raises_what_ends_the_batch() -> None:
    states = plain.run_batch(
        QUESTIONS, backend=MockBackend(echo), max_concurrency=1, on_error="raise", generator_style=True
    )
    assert next(states).error() is None
    with pytest.raises(BatchError, match="item 1 failed"):
        list(states)


@given(
    poisoned=st.lists(st.booleans(), min_size=1, max_size=25),
    max_concurrency=st.integers(1, 30),
    program=st.sampled_from([plain, reading, coroutine]),
)
@settings(max_examples=40, deadline=None)
def test_any_batch_gives_one_result_per_item_in_order(
    poisoned: list[bool], max_concurrency: int, program: Program
) -> None:
    items = [(f"{'poison' if bad else 'item'} {idx}",) for idx, bad in enumerate(poisoned)]
    backend = MockBackend(echo, mode="background")
    results = program.run_batch(items, backend=backend, max_concurrency=max_concurrency)
    backend.close()
    for (question,), bad, state in zip(items, poisoned, results, strict=True):
        assert isinstance(state.error(), ProgramError if bad else type(None))
        if not bad:
            assert state["x"] == f"<{question}>"
    assert results.summary.num_failed == sum(poisoned)


@pytest.mark.parametrize("program", [plain, coroutine])
def test_items_under_way_are_bounded_and_bodies_that_returned_hold_no_thread(program: Program) -> None:
    backend = MockBackend(echo, mode="manual")
    done = threading.Event()
    outcome: list[BatchResults] = []

    def run() -> None:
        outcome.append(program.run_batch([(f"q{idx}",) for idx in range(400)], backend=backend, max_concurrency=150))
        done.set()

    num_before = threading.active_count()
    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: len(backend.waiting) == 150)
    assert threading.active_count() - num_before < 60
    while not done.is_set():
        assert len(backend.waiting) <= 150
        backend.answer_all()
        time.sleep(0.001)
    thread.join(60)
    assert [state["x"] for state in outcome[0]] == [f"<q{idx}>" for idx in range(400)]


def test_cancelling_arun_batch_cancels_everything() -> None:
    backend = MockBackend(mode="manual")

    async def main() -> None:
        for program in (plain, reading, coroutine):
            task = asyncio.create_task(program.arun_batch([(f"q{idx}",) for idx in range(50)], backend=backend))
            while len(backend.waiting) < 48:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            wait_until(lambda: backend.waiting == ())

    asyncio.run(main())


def test_an_item_that_cancels_itself_fails_alone() -> None:
    @function
    async def gives_up(s: AsyncProgramState, idx: int) -> None:
        if idx == 1:
            raise asyncio.CancelledError("mine")
        s += "q" + gen("x")

    @function
    async def cancels_its_task(s: AsyncProgramState, idx: int) -> None:
        s += "q" + gen("x")
        if idx == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    @function
    def raises(s: ProgramState, idx: int) -> None:
        if idx == 1:
            raise asyncio.CancelledError("mine")
        s += "q" + gen("x")

    for program in (gives_up, cancels_its_task, raises):
        states = program.run_batch([(idx,) for idx in range(3)], backend=MockBackend("ok"), max_concurrency=1)
        assert [state.error() is None for state in states] == [True, False, True]
        assert states.summary.num_failed == 1


def test_a_half_read_iteration_may_be_collected_in_any_thread() -> None:
    backend = MockBackend(echo, mode="manual")
    held: list[Any] = []
    is_dropped = threading.Event()

    @function
    async def drops(s: AsyncProgramState, question: str) -> None:
        if question == "drop":
            while not held:
                await asyncio.sleep(0.001)
            held.clear()  # in the thread of the batch itself
            is_dropped.set()
        s += question + gen("x")

    def read() -> None:
        states: Any = drops.run_batch([("a",), ("drop",)], backend=backend, generator_style=True)
        next(states)
        held.append(states)

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: len(backend.waiting) == 1)
    backend.answer_all()
    assert is_dropped.wait(60)
    reader.join(60)
    wait_until(lambda: not any(thread.name == "ramet-batch-drops" for thread in threading.enumerate()))


INTERRUPTED = """
import asyncio, sys, threading
sys.path.insert(0, {folder!r})
from ramet.frontend.backends.mock import MockBackend
from tests_batch_programs import plain, reading, coroutine

backend = MockBackend(mode="manual")
def tell():
    while len(backend.waiting) < 40:
        threading.Event().wait(0.005)
    print("running", flush=True)
threading.Thread(target=tell, daemon=True).start()
items = [(f"q{{idx}}",) for idx in range(200)]
try:
    {run}
except KeyboardInterrupt:
    print("interrupted", len(backend.waiting), len(backend.requests) < 200, flush=True)
"""

PROGRAM_FILE = """
from ramet.frontend.primitives import gen
from ramet.frontend.program import function

@function
def plain(s, question):
    s += question + gen("x")

@function
def reading(s, question):
    s += question + gen("x")
    s["x"]

@function
async def coroutine(s, question):
    s += question + gen("x")
    await s["x"]
"""


@pytest.mark.parametrize(
    "run",
    [
        "reading.run_batch(items, backend=backend, max_concurrency=40)",
        "coroutine.run_batch(items, backend=backend, max_concurrency=40)",
        "asyncio.run(plain.arun_batch(items, backend=backend, max_concurrency=40))",
    ],
)
def test_ctrl_c_cancels_and_frees_everything(run: str, tmp_path: Path) -> None:
    (tmp_path / "tests_batch_programs.py").write_text(PROGRAM_FILE)
    script = INTERRUPTED.format(folder=str(tmp_path), run=run)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (out, err) == ("interrupted 0 True\n", "")


def test_failures_keep_their_kind() -> None:
    states = reading.run_batch(QUESTIONS, backend=MockBackend(echo))
    error = states[1].error()
    assert isinstance(error, ProgramError)
    assert isinstance(error.__cause__, GenerationError)


def wait_until(is_there: Any, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not is_there():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.001)
