"""What is no Exception, coming in the middle of what a state does: the state ends up idle, with a failure."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from ramet.frontend import interpreter as interpreter_module
from ramet.frontend import literals, operation_queue
from ramet.frontend.async_state import AsyncProgramState
from ramet.frontend.backend import GenerateCall, ProgramHint, TextSegment
from ramet.frontend.backends.mock import MockBackend, Reply
from ramet.frontend.errors import GenerationError, ProgramError
from ramet.frontend.primitives import assistant, gen, select, user
from ramet.frontend.program import function
from ramet.frontend.run_context import RunContext
from ramet.frontend.scope import Scope
from ramet.frontend.state import ProgramState

WAIT_S = 20.0


def new_state(backend: MockBackend) -> ProgramState:
    return ProgramState(Scope(RunContext("test", backend, {})))


def raising(error: BaseException) -> Callable[[GenerateCall, str], Reply]:
    def script(call: GenerateCall, prompt: str) -> Reply:
        raise error

    return script


def test_a_cancelled_error_of_a_backend_is_a_failure_of_the_call() -> None:
    @function
    async def program(s: AsyncProgramState) -> None:
        s += "q" + gen("x") + gen("y")
        with pytest.raises(GenerationError, match=r"gen 'x' at .* failed") as failure:
            await s["x"]
        assert isinstance(failure.value.__cause__, asyncio.CancelledError)

    state = program.run(backend=MockBackend(raising(asyncio.CancelledError())))
    assert isinstance(state.error(), GenerationError)


class RefusingBackend(MockBackend):
    """Raises what it is given where its own method of this name is called."""

    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__()
        self._method = method
        self._raised = error

    def _check(self, method: str) -> None:
        if method == self._method:
            raise self._raised

    def encode(self, segments: Sequence[TextSegment], *, at_start: bool) -> list[int]:
        self._check("encode")
        return super().encode(segments, at_start=at_start)

    def generate(self, call: GenerateCall) -> Any:
        self._check("generate")
        return super().generate(call)

    def score(self, call: Any) -> Any:
        self._check("score")
        return super().score(call)

    def role_prefix(self, messages: Any, role: str) -> Any:
        self._check("role_prefix")
        return super().role_prefix(messages, role)

    def hint(self, hint: ProgramHint) -> None:
        self._check("hint")


def everything(s: ProgramState) -> None:
    s += user("q") + assistant(gen("x") + select("y", choices=["a", "b"]))
    for branch in s.fork(2):
        branch += user("r") + assistant(gen("z"))
    s += user("t")


@pytest.mark.parametrize("error_type", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("method", ["encode", "generate", "score", "role_prefix", "hint"])
def test_whatever_a_backend_raises_the_state_ends(method: str, error_type: type[BaseException]) -> None:
    state = new_state(RefusingBackend(method, error_type()))
    if error_type is asyncio.CancelledError:
        everything(state)
    else:
        with pytest.raises(error_type):
            everything(state)
    state.sync(timeout=WAIT_S)
    if not (method == "hint" and error_type is asyncio.CancelledError):
        assert isinstance(state.error(), ProgramError)


def test_run_raises_the_interrupt_that_came_in_a_branch() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "q"
        forks = s.fork(3)
        forks += gen("x")
        forks.join()["x"]

    with pytest.raises(KeyboardInterrupt):
        program.run(backend=MockBackend(raising(KeyboardInterrupt())))


def test_an_interrupt_that_a_backend_reports_is_a_failure_of_the_call() -> None:
    backend = MockBackend(mode="manual")
    state = new_state(backend)
    state += "q" + gen("x") + gen("y")
    generation = state.calls()[1]
    execution = state._scope.interpreter._execution
    assert generation.name == "x"
    assert execution is not None
    execution.handles[0].fail(KeyboardInterrupt())
    with pytest.raises(GenerationError, match=r"gen 'x' at .* failed"):
        state.get("x", WAIT_S)


WATCHED = {module.__file__ for module in (interpreter_module, operation_queue, literals)}
HANDING_OVER = {
    *(
        "__init__",
        "add",
        "extend",
        "start",
        "execute_here",
        "claim",
        "_settle",
        "_append_branches",
        "resume",
        "_resume",
    ),
    *("_drain", "_give_up", "give_up"),
}
"""Who runs operations changes in these, or they deal with the interrupt: one between two of their lines is not
survived. All else runs in between."""


class InterruptAtLine:
    """Raises KeyboardInterrupt before the n-th line that runs in the watched modules, in this thread."""

    def __init__(self, num_lines: int) -> None:
        self._left = num_lines

    @property
    def has_come(self) -> bool:
        return self._left < 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in WATCHED or frame.f_code.co_name in HANDING_OVER:
            return None
        if event == "line":
            self._left -= 1
            if self._left == -1:
                raise KeyboardInterrupt
        return self


def interrupted_at(num_lines: int, work: Callable[[], None]) -> bool:
    interrupt = InterruptAtLine(num_lines)
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        work()
    except KeyboardInterrupt:
        assert interrupt.has_come
    else:
        assert not interrupt.has_come, "an interrupt must not be swallowed"
    finally:
        sys.settrace(before)
    return interrupt.has_come


def check_all_ended(state: ProgramState) -> None:
    state.sync(timeout=WAIT_S)
    assert [call for call in state.calls() if call.kind in ("gen", "select") and call.ended_at is None] == []


def test_an_interrupt_at_any_line_leaves_the_state_idle() -> None:
    num_lines, was_interrupted = 0, True
    while was_interrupted:
        state = new_state(MockBackend())
        was_interrupted = interrupted_at(num_lines, lambda it=state: everything(it))  # type: ignore[misc]
        check_all_ended(state)
        assert not was_interrupted or isinstance(state.error(), ProgramError)
        num_lines += 3
    assert num_lines > 100


def test_an_interrupt_in_a_callback_leaves_the_state_idle() -> None:
    num_lines, was_interrupted = 0, True
    while was_interrupted:
        backend = MockBackend(mode="manual")
        state = new_state(backend)
        everything(state)
        was_interrupted = interrupted_at(num_lines, backend.answer_all)
        backend.answer_all()
        check_all_ended(state)
        num_lines += 1
    assert num_lines > 50
