"""Streaming: every iterator sees everything, whenever it starts; looking at a running state never blocks."""

from __future__ import annotations

import threading

import pytest

from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.errors import GenerationError, ProgramError, UnknownVariableError
from ramet.frontend.primitives import assistant, gen, select, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState

TEXT = "hello wide world"


@function
def story(s: ProgramState) -> None:
    s += user("go") + assistant("Well, " + gen("x") + ", then " + gen("y"))


def collect(state: ProgramState, pieces: list[str]) -> None:
    for piece in state.text_iter():
        pieces.append(piece)


def test_pieces_joined_are_the_text_for_any_number_of_late_readers() -> None:
    backend = MockBackend(TEXT, mode="background")
    state = story.stream(backend=backend)
    early = list(state.text_iter())
    late = list(state.text_iter())
    assert "".join(early) == "".join(late) == state.text()
    assert "".join(state.text_iter("x")) == "".join(state.text_iter("x")) == state["x"] == TEXT
    assert list(state.text_iter("y")) == list(TEXT)
    backend.close()


def test_pieces_come_while_the_call_runs() -> None:
    backend = MockBackend("abcdef", mode="manual")
    state = story.run(backend=backend)
    pieces = state.text_iter("x")
    (request,) = backend.waiting
    request.push("abc")
    assert next(pieces) == "abc"
    assert state.text_so_far().endswith("Well, abc")
    assert "x (pending)" in repr(state)
    request.push("d")
    assert next(pieces) == "d"
    backend.answer_all()
    assert list(pieces) == ["ef"]
    assert state["x"] == "abcdef"


def test_readers_of_a_streamed_program_wait_for_its_body() -> None:
    may_go_on = threading.Event()

    @function
    def slow_body(s: ProgramState) -> str:
        s += "a"
        may_go_on.wait(60)
        s += gen("x") + "b"
        return "finished"

    state = slow_body.stream(backend=MockBackend("ok"))
    pieces = state.text_iter()
    assert next(pieces) == "a"
    assert "x" not in state
    assert state.text_so_far() == "a"
    assert "running" in repr(state)
    for read in (state.text, state.sync, state.messages, lambda timeout: state.get("x", timeout)):
        with pytest.raises(TimeoutError, match="still running"):
            read(timeout=0.01)
    with pytest.raises(TimeoutError, match="no new text"):
        list(state.text_iter(timeout=0.01))
    reader_result: list[str] = []
    reader = threading.Thread(target=lambda: reader_result.append(state["x"]))
    reader.start()
    may_go_on.set()
    reader.join()
    assert reader_result == ["ok"]
    assert "".join(pieces) == "okb"
    assert state.text() == "aokb"
    assert state.return_value == "finished"
    with pytest.raises(UnknownVariableError, match="'y'; variables so far: 'x'"):
        state["y"]


def test_what_a_streamed_body_raises_is_raised_by_reads() -> None:
    @function
    def raises(s: ProgramState) -> None:
        s += "a" + gen("x")
        s["x"]
        raise LookupError("mine")

    state = raises.stream(backend=MockBackend("ok"))
    pieces = state.text_iter()
    assert next(pieces) == "a"
    assert next(pieces) == "ok"
    with pytest.raises(ProgramError, match="LookupError: mine") as failure:
        next(pieces)
    assert isinstance(failure.value.__cause__, LookupError)
    with pytest.raises(ProgramError, match="mine"):
        state["never"]
    assert state["x"] == "ok"


def test_a_failed_call_ends_the_stream_with_its_error() -> None:
    backend = MockBackend([RuntimeError("no power")], mode="manual")
    state = story.run(backend=backend)
    pieces = state.text_iter("x")
    backend.waiting[0].push("so ")
    assert next(pieces) == "so "
    backend.answer_next()
    with pytest.raises(GenerationError, match="no power"):
        next(pieces)
    with pytest.raises(GenerationError, match="no power"):
        list(state.text_iter("y"))
    seen: list[str] = []
    with pytest.raises(GenerationError, match="no power"):
        collect(state, seen)
    assert "".join(seen).endswith("Well, so ")


def test_a_body_may_stream_its_own_text() -> None:
    @function
    def watches(s: ProgramState) -> tuple[str, str]:
        s += "a" + gen("x") + "b"
        own = "".join(s.text_iter("x"))
        return own, "".join(s.text_iter())

    assert watches.run(backend=MockBackend("ok")).return_value == ("ok", "aokb")
    state = watches.stream(backend=MockBackend("ok"))
    state.sync()
    assert state.return_value == ("ok", "aokb")


def test_branches_stream_with_the_text_they_inherit() -> None:
    @function
    def forks(s: ProgramState) -> None:
        s += "q" + gen("x")
        branches = s.fork(2)
        branches += "!" + gen("y")
        for branch in branches:
            assert "".join(branch.text_iter()) == "qok!ok"
            assert "".join(branch.text_iter("y")) == "ok"

    backend = MockBackend("ok", mode="background")
    state = forks.stream(backend=backend)
    assert state.error() is None
    backend.close()


def test_select_streams_whole() -> None:
    @function
    def selects(s: ProgramState) -> None:
        s += "q" + select("x", ["b", "aa"])

    assert list(selects.run(backend=MockBackend()).text_iter()) == ["q", "b"]


def test_iterators_started_at_any_moment_lose_nothing() -> None:
    """Readers start while the answer is being written, as fast as both can go."""
    for _ in range(50):
        backend = MockBackend("x" * 40, mode="background")
        state = story.stream(backend=backend)
        results: list[list[str]] = [[] for _ in range(4)]
        readers = [threading.Thread(target=collect, args=(state, pieces)) for pieces in results]
        for reader in readers:
            reader.start()
        text = state.text()
        for reader in readers:
            reader.join()
        backend.close()
        assert ["".join(pieces) for pieces in results] == [text] * 4


def test_stream_wins_over_an_argument_of_its_name() -> None:
    @function
    def shadows(s: ProgramState, stream: str = "mine") -> str:
        s += stream + gen("x")
        return stream

    state = shadows.stream(backend=MockBackend("ok"))
    assert state["x"] == "ok"
    assert state.text() == "mineok"


def test_run_with_stream_is_stream() -> None:
    state = story.run(backend=MockBackend("ok"), stream=True)
    assert "".join(state.text_iter()) == state.text()
