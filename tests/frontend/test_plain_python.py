"""Programs are plain Python: context variables, exceptions, iterators that are left, and Ctrl-C are as ever."""

from __future__ import annotations

import contextvars
import signal
import threading
import time
import traceback
from collections.abc import Callable

import pytest

from ramet import LLM
from ramet.frontend.backends.local import LocalBackend
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.errors import GenerationError, ProgramCancelledError, ProgramError
from ramet.frontend.primitives import gen, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState

LANGUAGE: contextvars.ContextVar[str] = contextvars.ContextVar("LANGUAGE", default="none")


class BackendDownError(Exception):
    pass


@function
def in_language(s: ProgramState) -> None:
    s += LANGUAGE.get() + ": " + gen("x")
    LANGUAGE.set("body")


def test_a_body_has_the_context_of_its_caller() -> None:
    def caller() -> tuple[str, str, str]:
        LANGUAGE.set("French")
        streamed = in_language.stream(backend=MockBackend())
        streamed.sync()
        seen = LANGUAGE.get()
        in_language.run(backend=MockBackend())  # in this thread, as a function call would
        return streamed.text(), seen, LANGUAGE.get()

    assert contextvars.Context().run(caller) == ("French: ok", "French", "body")


def test_an_error_in_a_nested_program_shows_every_line_of_the_program() -> None:
    @function
    def inner(s: ProgramState) -> None:
        s += "q" + gen("x")
        s["x"].upper()  # the line that reads

    @function
    def outer(s: ProgramState) -> None:
        inner(s)  # the line that calls

    with pytest.raises(GenerationError, match=r"gen 'x' at test_plain_python.py:\d+ failed: gone") as failure:
        outer.run(backend=MockBackend([BackendDownError("gone")]))
    shown = "".join(traceback.format_exception(failure.value))
    assert "the line that reads" in shown
    assert "the line that calls" in shown
    assert "BackendDownError: gone" in shown


def test_an_error_may_be_caught_and_the_program_goes_on() -> None:
    @function
    def tries(s: ProgramState) -> None:
        for branch in s.fork(2):
            branch += "q" + gen("x")
            try:
                s.set_var("found", branch["x"])
                return
            except GenerationError:
                s += "again "

    state = tries.run(backend=MockBackend([BackendDownError("gone"), "yes"]))
    assert (state["found"], state.text(), state.error().__class__) == ("yes", "again ", GenerationError)


def test_a_body_runs_once_per_run_and_never_with_other_arguments() -> None:
    seen: list[object] = []

    @function
    def counts(s: ProgramState, table: dict[str, str], key: str) -> None:
        seen.append(key)
        s += "The same long beginning of every item. " * 5 + table[key] + gen("x")

    table = {"a": "1", "b": "2"}
    states = counts.run_batch([(table, "a"), (table, "b"), (table, "missing")], backend=MockBackend())
    assert sorted(map(str, seen)) == ["a", "b", "missing"]
    assert [state.error() is None for state in states] == [True, True, False]
    with pytest.raises(ProgramError, match="raised KeyError: 'missing'"):
        states[2].text()


def test_iterators_that_are_left_hold_nobody_up() -> None:
    backend = MockBackend("a long text", mode="background")

    @function
    def program(s: ProgramState) -> None:
        s += "q: " + gen("x")

    state = program.run(backend=backend)
    for iterator in [state.text_iter() for _ in range(3)] + [state.text_iter("x") for _ in range(3)]:
        next(iterator)
        iterator.close()  # type: ignore[attr-defined]
    assert state.text() == "q: a long text"
    backend.close()


def test_looking_at_a_running_state_never_waits() -> None:
    backend = MockBackend(mode="manual")

    @function
    def program(s: ProgramState) -> None:
        with s.user():
            s += "q" + gen("x")
        forks = s.fork(2)
        forks += user("a")
        s.set_var("forks", forks)
        joined = forks.join()
        assert "forks" in f"{s} {s!r} {forks} {joined}"

    state = program.run(backend=backend)
    assert repr(state) == str(state)
    assert ("running" in repr(state), "x (pending)" in repr(state), "x" in state, "y" in state) == (*[True] * 3, False)
    assert state.text_so_far().endswith("q")
    assert len(state.calls()) == 6
    backend.answer_all()
    assert "done" in repr(state)


def interrupt_once(is_time: Callable[[], bool]) -> threading.Thread:
    """Press Ctrl-C, from another thread, when it is time."""
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        deadline = time.monotonic() + 60
        while not is_time() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)  # by then the main thread waits
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


@function
def waits_inside(s: ProgramState) -> None:
    s += "q" + gen("x") + gen("y")
    s["x"]


@function
def waits_outside(s: ProgramState) -> None:
    s += "q" + gen("x") + gen("y")


READS: dict[str, Callable[[MockBackend], object]] = {
    "inside the body": lambda backend: waits_inside.run(backend=backend),
    "of a value": lambda backend: waits_outside.run(backend=backend)["x"],
    "of the text": lambda backend: waits_outside.run(backend=backend).text(),
    "of the meta": lambda backend: waits_outside.run(backend=backend).meta("y"),
    "piece by piece": lambda backend: list(waits_outside.run(backend=backend).text_iter()),
    "of a stream": lambda backend: waits_inside.stream(backend=backend)["y"],
    "until all has run": lambda backend: waits_outside.run(backend=backend).sync(),
}


@pytest.mark.parametrize("read", list(READS))
def test_ctrl_c_in_a_read_cancels_the_program(read: str) -> None:
    backend = MockBackend(mode="manual")
    presser = interrupt_once(lambda: bool(backend.waiting))
    with pytest.raises(KeyboardInterrupt):
        READS[read](backend)
    presser.join()
    assert backend.waiting == ()
    assert len(backend.requests) == 1


def test_what_ctrl_c_cancelled_says_so() -> None:
    backend = MockBackend(mode="manual")
    state = waits_outside.run(backend=backend)
    presser = interrupt_once(lambda: True)
    with pytest.raises(KeyboardInterrupt):
        state["x"]
    presser.join()
    with pytest.raises(ProgramCancelledError, match=r"gen 'y' .* was cancelled: a read of it was interrupted"):
        state["y"]


@pytest.mark.model
def test_ctrl_c_frees_the_engine(smollm2: LLM) -> None:
    with LocalBackend(smollm2) as backend:
        num_aborted = smollm2.metrics().num_aborted
        num_steps = smollm2.metrics().num_steps
        presser = interrupt_once(lambda: smollm2.metrics().num_steps > num_steps + 2)
        with pytest.raises(KeyboardInterrupt):
            waits_inside.run(backend=backend, max_tokens=1500, ignore_eos=True)
        presser.join()
        state = waits_outside.run(backend=backend, max_tokens=2, temperature=0)
        assert state.error() is None
        assert smollm2.metrics().num_aborted == num_aborted + 1
