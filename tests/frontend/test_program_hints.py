"""What a run tells its backend beside its calls: forks, joins, what is expected, and once that it is over."""

from __future__ import annotations

import gc
import threading

import pytest

from ramet.frontend.backend import CallExpected, ProgramEnded, ProgramForked, ProgramHint, ProgramJoined
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.errors import InvalidProgramError
from ramet.frontend.primitives import gen
from ramet.frontend.program import function
from ramet.frontend.run_context import RunContext
from ramet.frontend.scope import Scope
from ramet.frontend.state import ProgramState


@function
def two_calls(s: ProgramState) -> None:
    s += "a" + gen("x") + "b" + gen("y")


class Listening(MockBackend):
    """Says when it has heard of something."""

    def __init__(self) -> None:
        super().__init__()
        self.has_heard = threading.Event()

    def hint(self, hint: ProgramHint) -> None:
        super().hint(hint)
        self.has_heard.set()


def run_ids(backend: MockBackend) -> list[str]:
    return [request.call.program.run_id for request in backend.requests if request.call.program is not None]


def test_the_end_is_told_once_when_body_and_calls_are_over() -> None:
    backend = MockBackend(mode="manual")
    state = two_calls.run(backend=backend)
    backend.answer_next()
    assert backend.hints == []
    backend.answer_next()
    assert backend.hints == [ProgramEnded(run_ids(backend)[0])]
    state.sync()
    del state
    gc.collect()
    assert len(backend.hints) == 1


def test_what_is_appended_after_the_end_is_no_part_of_the_run() -> None:
    backend = MockBackend()
    state = two_calls.run(backend=backend)
    state += gen("z")
    assert state["z"] == "ok"
    assert [request.call.program is None for request in backend.requests] == [False, False, True]
    assert len(backend.hints) == 1


def test_a_body_that_goes_on_after_its_calls_is_not_over() -> None:
    backend = Listening()
    may_end = threading.Event()

    @function
    def lingers(s: ProgramState) -> None:
        s += "a" + gen("x")
        may_end.wait()
        s += gen("y")

    state = lingers.stream(backend=backend)
    assert state["x"] == "ok"
    assert backend.hints == []
    may_end.set()
    assert backend.has_heard.wait(60)
    assert backend.hints == [ProgramEnded(run_ids(backend)[0])]


@pytest.mark.parametrize("has_calls", [True, False])
def test_a_body_that_raises_is_over(has_calls: bool) -> None:
    backend = MockBackend(mode="manual")

    @function
    def breaks(s: ProgramState) -> None:
        if has_calls:
            s += "a" + gen("x")
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        breaks.run(backend=backend)
    assert [type(hint) for hint in backend.hints] == [ProgramEnded]


def test_a_cancelled_program_is_over_once_its_calls_are_settled() -> None:
    backend = MockBackend(mode="manual")

    @function
    def forks(s: ProgramState) -> None:
        s += "a"
        branches = s.fork(3)
        branches += gen("x") + gen("y")

    state = forks.run(backend=backend)
    assert [type(hint) for hint in backend.hints] == [ProgramForked]
    state.cancel()
    assert [type(hint) for hint in backend.hints] == [ProgramForked, ProgramEnded]


def test_failed_calls_and_bad_items_of_a_batch_end_their_runs() -> None:
    backend = MockBackend(["one", ValueError("lost"), "two", "three"])

    @function
    def needs_word(s: ProgramState, word: str) -> None:
        s += word + gen("x")

    states = needs_word.run_batch(
        [{"word": "a"}, {"wrong": 1}, {"word": "b"}, {"word": "c"}], backend=backend, max_concurrency=1
    )
    assert [state.error() is None for state in states] == [True, False, False, True]
    ended = [hint.run_id for hint in backend.hints if isinstance(hint, ProgramEnded)]
    assert len(ended) == len(set(ended)) == 4
    assert set(run_ids(backend)) < set(ended)


def test_a_run_that_nobody_has_any_more_is_over() -> None:
    """A body that was given up in its middle, as by a generator that is dropped."""
    backend = MockBackend()
    scope = Scope(RunContext("lost", backend, {}))
    state = ProgramState(scope)
    state += "a" + gen("x")
    assert state["x"] == "ok"
    run_id = scope.run.run_id
    assert backend.hints == []
    del scope, state
    gc.collect()
    assert backend.hints == [ProgramEnded(run_id)]


def test_forks_and_joins_are_told_in_the_order_of_the_program() -> None:
    backend = MockBackend(mode="manual")

    @function
    def research(s: ProgramState) -> None:
        s += "topic:" + gen("topic")
        branches = s.fork(2)
        branches += gen("fact") + gen("detail")
        branches.join()
        inner = s.fork(1)[0].fork(2)
        inner += gen("deep")
        s += gen("end")

    research.run(backend=backend)
    run_id = run_ids(backend)[0]
    assert backend.hints == [], "the first call is still running"
    backend.answer_next()
    outer: list[ProgramHint] = [
        ProgramForked(run_id, (), 0, 2),
        ProgramJoined(run_id, (), ((0,), (1,)), 2),
        ProgramForked(run_id, (), 2, 1),
    ]
    assert backend.hints == [*outer, ProgramForked(run_id, (2,), 0, 2)]
    backend.answer_all()
    assert backend.hints[4:] == [ProgramEnded(run_id)]


def test_what_a_program_expects_is_told_once_the_calls_before_have_run() -> None:
    backend = MockBackend(mode="manual")

    @function
    def agents(s: ProgramState) -> None:
        writer, critic = s.fork(2)
        writer += "write" + gen("draft")
        writer.expect_call(after=1)
        critic += "criticise" + gen("verdict")
        critic.expect_call(after=None)

    agents.run(backend=backend)
    run_id = run_ids(backend)[0]
    assert backend.hints == [ProgramForked(run_id, (), 0, 2)]
    backend.answer_next()
    assert backend.hints[1:] == [CallExpected(run_id, (0,), 1)]
    backend.answer_next()
    assert backend.hints[2:] == [CallExpected(run_id, (1,), None), ProgramEnded(run_id)]


@pytest.mark.parametrize("after", [-1, 1.0, True, "2", 1_000_001])
def test_an_expectation_must_be_a_number_of_calls(after: int) -> None:
    @function
    def expects(s: ProgramState) -> None:
        s.expect_call(after=after)

    with pytest.raises(InvalidProgramError, match=r"expect_call\(after="):
        expects.run(backend=MockBackend())


def test_a_backend_that_cannot_take_a_hint_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(MockBackend):
        def hint(self, hint: ProgramHint) -> None:
            raise RuntimeError("no hints, please")

    assert two_calls.run(backend=Deaf())["y"] == "ok"
    assert "did not take the hint" in caplog.text


def test_hints_are_told_once_however_many_threads_append() -> None:
    backend = MockBackend(mode="background")

    @function
    def grows(s: ProgramState) -> None:
        s += "a"
        branches = list(s.fork(8))

        def append(branch: ProgramState) -> None:
            for idx in range(20):
                branch += gen(f"x{idx}")

        threads = [threading.Thread(target=append, args=(branch,)) for branch in branches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    states = [grows.run(backend=backend) for _ in range(5)]
    assert all(state.error() is None for state in states)
    backend.close()  # its thread has told all it had to
    ended = [hint.run_id for hint in backend.hints if isinstance(hint, ProgramEnded)]
    assert sorted(ended) == sorted(set(ended))
    assert len(ended) == 5
