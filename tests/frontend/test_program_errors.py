"""Errors surface where a value is read, with their cause; nothing hangs and nothing is lost silently."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from ramet.frontend.backend import GenerateCall
from ramet.frontend.backends.mock import MockBackend, MockCancelledError
from ramet.frontend.errors import (
    ForkError,
    GenerationError,
    InvalidProgramError,
    ProgramCancelledError,
    ProgramError,
    UnknownVariableError,
)
from ramet.frontend.primitives import assistant, gen, select, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState


class BackendDownError(Exception):
    pass


@function
def three_steps(s: ProgramState) -> None:
    s += "a" + gen("x") + "b" + gen("y") + "c" + gen("z")


def test_a_failed_call_is_raised_by_reads_with_its_cause_and_line() -> None:
    backend = MockBackend(["fine", BackendDownError("no power")])
    state = three_steps.run(backend=backend)
    assert state["x"] == "fine"
    with pytest.raises(GenerationError, match=r"gen 'y' at test_program_errors.py:\d+ failed: no power") as failure:
        state["y"]
    assert isinstance(failure.value.__cause__, BackendDownError)
    with pytest.raises(GenerationError, match=r"gen 'z' .* was not run: gen 'y' .* failed: no power") as dependent:
        state["z"]
    assert isinstance(dependent.value.__cause__, GenerationError)
    assert isinstance(dependent.value.__cause__.__cause__, BackendDownError)
    assert len(backend.requests) == 2
    for read in (state.text, state.messages, state.token_ids, lambda: state.meta("z"), lambda: list(state.text_iter())):
        with pytest.raises(GenerationError, match="no power"):
            read()
    assert state.text_so_far() == "afineb"
    assert "failed" in repr(state)
    error = state.error()
    assert isinstance(error, GenerationError)
    assert isinstance(error.__cause__, BackendDownError)


def test_every_read_gets_its_own_exception() -> None:
    state = three_steps.run(backend=MockBackend([BackendDownError("no power")]))
    errors = []
    for _ in range(2):
        with pytest.raises(GenerationError) as failure:
            state["x"]
        errors.append(failure.value)
    assert errors[0] is not errors[1]


def test_a_backend_that_refuses_at_once_is_no_different() -> None:
    class Refusing(MockBackend):
        def generate(self, call: GenerateCall) -> None:  # type: ignore[override]
            raise BackendDownError("too long")

    state = three_steps.run(backend=Refusing())
    with pytest.raises(GenerationError, match=r"gen 'x' .* failed: too long"):
        state["x"]
    with pytest.raises(GenerationError, match="too long"):
        list(state.text_iter("z"))


def test_run_raises_what_the_body_raises_as_it_is() -> None:
    @function
    def raises(s: ProgramState) -> None:
        s += "a" + gen("x")
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        raises.run(backend=MockBackend())


def test_state_of_a_body_that_raised_keeps_what_it_has() -> None:
    @function
    def raises(s: ProgramState) -> None:
        s += "a" + gen("x")
        s["x"]
        s += gen("y")
        raise LookupError("mine")

    backend = MockBackend("ok", mode="background")
    state = raises.run(backend=backend, on_error="return")
    backend.close()
    assert state["x"] == "ok"
    with pytest.raises(ProgramError, match="the program 'raises' raised LookupError: mine") as failure:
        state["never"]
    assert isinstance(failure.value.__cause__, LookupError)
    with pytest.raises(ProgramError, match="mine"):
        state.text()
    assert isinstance(state.error(), ProgramError)
    assert "raised" in repr(state)


def test_a_body_that_raises_cancels_what_still_runs() -> None:
    backend = MockBackend(mode="manual")

    @function
    def raises(s: ProgramState) -> None:
        s += "a" + gen("x") + gen("y")
        branches = s.fork(2)
        branches += gen("z")
        raise LookupError("mine")

    state = raises.run(backend=backend, on_error="return")
    assert backend.waiting == ()
    for name in ("x", "y"):
        with pytest.raises(
            ProgramCancelledError, match=f"gen '{name}' .*was cancelled: the program 'raises' raised LookupError: mine"
        ) as failure:
            state[name]
        assert isinstance(failure.value.__cause__, LookupError)
    assert len(backend.requests) == 1


def test_an_item_whose_body_raised_says_so_in_every_read() -> None:
    @function
    def raises(s: ProgramState) -> None:
        branches = s.fork(2)
        branches += "a" + gen("x")
        branches.join()
        raise LookupError("mine")

    (state,) = raises.run_batch([()], backend=MockBackend(mode="manual"))
    with pytest.raises(
        ForkError, match=r"gen 'x' .* was cancelled: the program 'raises' raised LookupError: mine"
    ) as x:
        state["x"]
    assert isinstance(x.value.__cause__, ProgramCancelledError)
    assert isinstance(x.value.__cause__.__cause__, LookupError)


def test_cancel_ends_pending_reads_and_leaves_finished_values() -> None:
    backend = MockBackend("ok", mode="manual")
    state = three_steps.run(backend=backend)
    backend.answer_next()
    state.cancel()
    assert state["x"] == "ok"
    with pytest.raises(ProgramCancelledError, match="gen 'y'"):
        state["y"]
    with pytest.raises(ProgramCancelledError, match=r"gen 'z' at \S+ was cancelled: cancel\(\) was called"):
        state["z"]
    assert backend.waiting == ()
    assert isinstance(state.calls()[-1].failure, object)


def test_cancel_reaches_what_a_running_body_adds_later() -> None:
    may_go_on = threading.Event()

    @function
    def waits(s: ProgramState) -> None:
        s += "a" + gen("x")
        may_go_on.wait(60)
        s += gen("y")
        s.fork(2).__iadd__(gen("z"))

    backend = MockBackend("ok")
    state = waits.stream(backend=backend)
    assert state["x"] == "ok"
    state.cancel()
    may_go_on.set()
    with pytest.raises(ProgramCancelledError, match="gen 'y'"):
        state["y"]
    state.sync()
    assert len(backend.requests) == 1


def test_cancel_of_a_finished_state_changes_nothing() -> None:
    state = three_steps.run(backend=MockBackend())
    state.cancel()
    assert state.text() == "aokbokcok"
    assert state.error() is None


def test_a_closed_backend_fails_calls_and_does_not_hang() -> None:
    backend = MockBackend(mode="background")
    backend.close()
    state = three_steps.run(backend=backend)
    with pytest.raises(GenerationError) as failure:
        state["x"]
    assert isinstance(failure.value.__cause__, MockCancelledError)


def test_empty_prompts_are_refused_by_name() -> None:
    @function
    def empty(s: ProgramState) -> None:
        s += "" + gen("x")

    @function
    def empty_select(s: ProgramState) -> None:
        s += select("x", ["a", "b"])

    for program, message in ((empty, "no text before it"), (empty_select, "no text before it")):
        state = program.run(backend=MockBackend())
        with pytest.raises(GenerationError, match=message):
            state["x"]


def test_template_errors_reach_the_reader() -> None:
    class NoTemplate(MockBackend):
        def role_prefix(self, messages: object, role: str) -> None:  # type: ignore[override]
            raise ValueError("this model has no chat template")

    @function
    def chat(s: ProgramState) -> None:
        s += user("hi")
        s += assistant(gen("x"))

    state = chat.run(backend=NoTemplate())
    with pytest.raises(GenerationError, match=r"gen 'x' .* was not run: .*no chat template"):
        state["x"]
    with pytest.raises(GenerationError, match="no chat template"):
        state.text()


def test_an_error_caught_in_the_body_lets_it_go_on_elsewhere() -> None:
    @function
    def retries(s: ProgramState) -> None:
        branches = s.fork(2)
        branches += "q" + gen("x")
        for branch in branches:
            try:
                s += str(branch["x"])
                break
            except GenerationError:
                continue

    state = retries.run(backend=MockBackend([BackendDownError("once"), "second"]))
    assert state.text() == "second"


def test_arguments_are_checked_by_name() -> None:
    with pytest.raises(InvalidProgramError, match="unknown argument 'speed'"):
        three_steps.run(speed=3)
    with pytest.raises(
        InvalidProgramError,
        match=r"three_steps.run got an unknown argument 'max_token'; did you mean 'max_tokens'\? "
        r"the program takes no arguments; options of run are backend, on_error, stream, frequency_penalty, .* top_p$",
    ):
        three_steps.run(max_token=3)
    with pytest.raises(InvalidProgramError, match=r"three_steps.stream got an unknown argument 'stream'"):
        three_steps.stream(stream=True)
    with pytest.raises(InvalidProgramError, match="wrong arguments for three_steps: too many positional"):
        three_steps.run(1, backend=MockBackend())
    with pytest.raises(InvalidProgramError, match="on_error='ignore'"):
        three_steps.run(on_error="ignore")
    with pytest.raises(InvalidProgramError, match="takes no state"):
        function(lambda: None)


def test_returning_an_expression_is_reported() -> None:
    @function
    def forgot(s: ProgramState) -> object:
        return "a" + gen("x")

    with pytest.raises(InvalidProgramError, match="append it to the state"):
        forgot.run(backend=MockBackend())


def test_generators_are_refused() -> None:
    def yields(s: ProgramState) -> Iterator[str]:
        yield "x"

    async def yields_later(s: ProgramState) -> AsyncIterator[str]:
        yield "x"

    for body in (yields, yields_later):
        with pytest.raises(InvalidProgramError, match=r"yields.* is a generator function"):
            function(body)


def test_unknown_variable_is_a_key_error_with_a_plain_message() -> None:
    error = UnknownVariableError("a", ["b"])
    assert str(error) == "the program has no variable 'a'; variables so far: 'b'"
