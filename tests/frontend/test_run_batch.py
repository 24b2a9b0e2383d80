"""run_batch: one result per item, in order; a failed item disturbs no other."""

from __future__ import annotations

import contextvars
import io
import sys
import threading
from typing import Any

import pytest

from ramet.frontend.backend import GenerateCall
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.batch_results import ItemTotals
from ramet.frontend.errors import GenerationError, InvalidProgramError, ProgramError
from ramet.frontend.primitives import gen
from ramet.frontend.program import function
from ramet.frontend.progress import Progress
from ramet.frontend.state import ProgramState


@function
def answer(s: ProgramState, question: str, suffix: str = "?") -> str:
    s += question + suffix + gen("x")
    return question


def echo(call: GenerateCall, prompt: str) -> str:
    if "poison" in prompt:
        raise RuntimeError(f"cannot read {prompt}")
    return f"<{prompt}>"


def test_a_thousand_items_with_failures_give_a_thousand_results_in_order() -> None:
    poisoned = {idx for idx in range(1000) if idx % 27 == 3}
    raised: set[int] = {idx for idx in range(1000) if idx % 100 == 7}
    mismatched: set[int] = {idx for idx in range(1000) if idx % 250 == 11}

    @function
    def item_program(s: ProgramState, idx: int) -> None:
        s += ("poison" if idx in poisoned else "item") + f" {idx}" + gen("x") + "," + gen("y")
        if idx in raised:
            raise LookupError(f"body {idx}")

    items = [{"nonsense": idx} if idx in mismatched else {"idx": idx} for idx in range(1000)]
    states = item_program.run_batch(items, backend=MockBackend(echo))
    assert len(states) == 1000
    for idx, state in enumerate(states):
        error = state.error()
        if idx in mismatched:
            assert isinstance(error, ProgramError)
            assert "missing a required argument: 'idx'" in str(error)
            with pytest.raises(ProgramError, match="missing a required argument"):
                state["x"]
        elif idx in raised:
            assert isinstance(error, ProgramError)
            assert isinstance(error.__cause__, LookupError)
        elif idx in poisoned:
            assert isinstance(error, GenerationError)
            with pytest.raises(GenerationError, match=f"cannot read poison {idx}"):
                state["y"]
        else:
            assert error is None
            assert state["x"] == f"<item {idx}>"
            assert state["y"] == f"<item {idx}<item {idx}>,>"


def test_items_may_be_dicts_or_tuples_and_are_left_alone() -> None:
    items = [{"question": "a"}, ("b",), ("c", "!"), {"question": "d", "suffix": ":"}]
    copies = [dict(item) if isinstance(item, dict) else item for item in items]
    states = answer.run_batch(items, backend=MockBackend(echo))
    assert [state["x"] for state in states] == ["<a?>", "<b?>", "<c!>", "<d:>"]
    assert [state.return_value for state in states] == ["a", "b", "c", "d"]
    assert items == copies


def test_options_and_bound_arguments_apply_to_every_item() -> None:
    backend = MockBackend("long answer")
    states = answer.bind(suffix="~").run_batch([{"question": "a"}, ("b",), ("c", "!")], backend=backend, max_tokens=4)
    assert [state["x"] for state in states] == ["long"] * 3
    assert {request.prompt for request in backend.requests} == {"a~", "b~", "c!"}
    assert states[0].meta("x").finish_reason == "length"


def test_bind_gives_defaults_that_run_overrides() -> None:
    bound = answer.bind(question="a")
    assert bound.run(backend=MockBackend(echo))["x"] == "<a?>"
    assert bound.run("b", backend=MockBackend(echo))["x"] == "<b?>"
    assert bound.run(question="c", backend=MockBackend(echo))["x"] == "<c?>"
    with pytest.raises(InvalidProgramError, match="cannot bind 'query': answer takes question, suffix"):
        answer.bind(query="a")


def test_no_items_need_no_backend() -> None:
    assert answer.run_batch([]) == []


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["a", "b"], "item 0 of run_batch is 'a'; give a dict"),
        ([{"question": "a"}, 3], "item 1 of run_batch is 3"),
        ({"question": "a"}, "takes a list of dicts or tuples"),
        ("abc", "takes a list of dicts or tuples"),
    ],
)
def test_items_of_another_form_are_refused_before_anything_runs(items: list[dict[str, str]], message: str) -> None:
    backend = MockBackend()
    with pytest.raises(InvalidProgramError, match=message):
        answer.run_batch(items, backend=backend)
    assert backend.requests == []


@pytest.mark.parametrize("max_concurrency", [0, 1.5, True, 10**6])
def test_max_concurrency_is_checked(max_concurrency: int) -> None:
    with pytest.raises(InvalidProgramError, match="integer from 1 to 4096"):
        answer.run_batch([("a",)], backend=MockBackend(), max_concurrency=max_concurrency)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": True}, "answer.run_batch does not take 'stream'"),
        ({"max_concurency": 3}, r"answer.run_batch got an unknown argument .* did you mean 'max_concurrency'\?"),
        (
            {"zzz": 3},
            "takes question, suffix; options of run_batch are max_concurrency, progress_bar, on_error, max_failures",
        ),
    ],
)
def test_options_it_does_not_take_are_refused(options: dict[str, Any], message: str) -> None:
    backend = MockBackend()
    with pytest.raises(InvalidProgramError, match=message):
        answer.run_batch([("a",)], backend=backend, **options)
    assert backend.requests == []


def test_program_arguments_belong_in_the_items() -> None:
    with pytest.raises(InvalidProgramError, match=r"from the items, or from bind: \['suffix'\]"):
        answer.run_batch([("a",)], backend=MockBackend(), suffix="!")


def test_at_most_max_concurrency_items_run_at_a_time() -> None:
    lock = threading.Lock()
    running: list[int] = []
    most = 0
    all_there = threading.Barrier(3, timeout=60)

    @function
    def counts(s: ProgramState, idx: int) -> None:
        nonlocal most
        with lock:
            running.append(idx)
            most = max(most, len(running))
        all_there.wait()
        s += "q" + gen("x")
        s["x"]
        with lock:
            running.remove(idx)

    states = counts.run_batch([(idx,) for idx in range(9)], backend=MockBackend(), max_concurrency=3)
    assert [state.error() for state in states] == [None] * 9
    assert most == 3


def test_context_variables_reach_the_bodies() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    @function
    def reads(s: ProgramState) -> str:
        return variable.get()

    variable.set("outer")
    assert reads.run(backend=MockBackend()).return_value == "outer"
    assert [state.return_value for state in reads.run_batch([()] * 2, backend=MockBackend())] == ["outer", "outer"]
    streamed = reads.stream(backend=MockBackend())
    streamed.sync()
    assert streamed.return_value == "outer"


def test_an_interrupt_in_a_body_ends_the_batch_and_cancels_the_rest() -> None:
    backend = MockBackend(mode="manual")

    @function
    def interrupted(s: ProgramState, idx: int) -> None:
        s += f"q{idx}" + gen("x")
        if idx == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted.run_batch([(idx,) for idx in range(50)], backend=backend, max_concurrency=4)
    assert backend.waiting == ()
    assert len(backend.requests) < 50


def test_own_parameters_win_over_options_of_the_same_name() -> None:
    @function
    def shadows(s: ProgramState, stop: str, temperature: float) -> str:
        s += "q" + gen("x")
        return f"{stop}{temperature}"

    backend = MockBackend()
    state = shadows.run(stop="x", temperature=7.5, backend=backend)
    assert state.return_value == "x7.5"
    call = backend.requests[0].call
    assert isinstance(call, GenerateCall)
    assert call.sampling_params.temperature == 1.0


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def add_item(progress: Progress, *, is_failed: bool = False) -> None:
    progress.add(ItemTotals(is_failed, num_prompt_tokens=100, num_cached_tokens=75, num_generated_tokens=20))


def test_progress_rewrites_one_line_on_a_terminal() -> None:
    clock, terminal = FakeClock(), Terminal()
    progress = Progress("answer", 4, terminal, clock, {})
    add_item(progress)
    assert terminal.getvalue() == ""
    clock.now = 2.0
    add_item(progress, is_failed=True)
    line = "answer: 2/4, 1 failed, 1.0 items/s, 20 tokens/s, 75 % cached, 0:02 left"
    assert terminal.getvalue() == "\r" + line
    add_item(progress)
    add_item(progress)
    progress.close()
    last = "answer: 4/4, 1 failed, 2.0 items/s, 40 tokens/s, 75 % cached"
    assert terminal.getvalue() == "\r" + line + "\r" + last.ljust(len(line)) + "\n"


@pytest.mark.parametrize("environment", [{"CI": "true"}, {"TERM": "dumb"}])
def test_progress_writes_plain_lines_where_a_terminal_keeps_them(environment: dict[str, str]) -> None:
    clock, terminal = FakeClock(), Terminal()
    progress = Progress("answer", 2, terminal, clock, environment)
    add_item(progress)
    progress.close()
    assert terminal.getvalue().endswith(" items/s, 20000000000 tokens/s, 75 % cached, 0:00 left\n")
    assert "\r" not in terminal.getvalue()


class FullStream(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stream", [None, "closed", "full"])
def test_progress_that_cannot_be_shown_is_no_reason_to_end(stream: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {None: None, "closed": io.StringIO(), "full": FullStream()}
    shown = streams[stream]
    if stream == "closed" and shown is not None:
        shown.close()
    monkeypatch.setattr(sys, "stderr", shown)
    program = function(lambda s: s.append("q" + gen("x")))
    states = program.run_batch([(), ()], backend=MockBackend("ok"), progress_bar=True)
    monkeypatch.undo()
    assert [state["x"] for state in states] == ["ok", "ok"]


def test_progress_counts_what_came_from_a_journal_apart() -> None:
    clock = FakeClock()
    progress = Progress("answer", 10, io.StringIO(), clock, {})
    for is_resumed in (True, True, True, False, False):
        progress.add(ItemTotals(not is_resumed, 100, 50, 10), is_resumed=is_resumed)
    clock.now = 2.0
    line = "answer: 5/10 (3 from the journal), 2 failed, 1.0 items/s, 10 tokens/s, 50 % cached, 0:05 left"
    assert progress.line() == line


def test_the_first_failure_is_told_once() -> None:
    @function
    def picky(s: ProgramState, number: int) -> None:
        if number % 2:
            raise ValueError(f"{number} is odd\nindeed")

    results = picky.run_batch([(0,), (1,), (3,)], backend=MockBackend())
    assert results.summary.first_error == "item 1: the program 'picky' raised ValueError: 1 is odd indeed"
    assert str(results.summary).endswith("first failure, " + results.summary.first_error)
    assert picky.run_batch([(2,)], backend=MockBackend()).summary.first_error == ""
    stream = io.StringIO()
    progress = Progress("picky", 2, stream, FakeClock(), {})
    for error in ("first", "second"):
        progress.add(ItemTotals(is_failed=True, error=error))
    progress.close()
    assert stream.getvalue().endswith("\npicky: the first failure: first\n")
    assert "second" not in stream.getvalue()


def test_progress_writes_plain_lines_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    clock, stream = FakeClock(), io.StringIO()
    progress = Progress("answer", 7200, stream, clock)
    clock.now = 9.0
    add_item(progress)
    assert stream.getvalue() == ""
    clock.now = 10.0
    add_item(progress)
    assert stream.getvalue() == "answer: 2/7200, 0.2 items/s, 4 tokens/s, 75 % cached, 9:59:50 left\n"
    answer.run_batch([("a",)], backend=MockBackend(), progress_bar=True)
    assert capsys.readouterr().err.startswith("answer: 1/1, ")
