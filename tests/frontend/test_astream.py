"""astream: every call's events in order, nothing lost, an end; leaving it cancels the program."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.frontend.async_state import AsyncProgramState
from ramet.frontend.backend import GenerateCall
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.errors import GenerationError, InvalidProgramError, ProgramError
from ramet.frontend.primitives import gen, select
from ramet.frontend.program import Program, function
from ramet.frontend.run_events import CallEnded, CallEvent, CallStarted, RunEnded, RunEvent, TextPiece
from ramet.frontend.state import ProgramState


@function
def plain(s: ProgramState) -> str:
    s += "a" + gen("x") + select("y", ["b", "cc"])
    forks = s.fork(2)
    forks += gen("z")
    forks.join()
    return "returned"


@function
async def coroutine(s: AsyncProgramState) -> str:
    s += "a" + gen("x") + select("y", ["b", "cc"])
    await s["y"]
    forks = s.fork(2)
    forks += gen("z")
    await forks.join()["z"]
    return "returned"


PROGRAMS = pytest.mark.parametrize("program", [plain, coroutine])


async def events_of(program: Program, **options: Any) -> list[RunEvent]:
    return [event async for event in program.astream(**options)]


def check_order(events: Sequence[RunEvent]) -> None:
    """Each call: a start, pieces that are its text, one end; the program's end is last."""
    assert isinstance(events[-1], RunEnded)
    by_call: dict[int, list[CallEvent]] = {}
    for event in events[:-1]:
        assert isinstance(event, CallEvent)
        by_call.setdefault(event.call_id, []).append(event)
    for call_events in by_call.values():
        first, *pieces, last = call_events
        assert isinstance(first, CallStarted)
        assert isinstance(last, CallEnded)
        assert "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)) == last.text
        assert len({(event.name, event.branch, event.kind) for event in call_events}) == 1
    state = events[-1].state
    asked = [record for record in state.calls() if record.kind in ("gen", "select")]
    assert sorted(by_call) == [record.call_id for record in asked]


@PROGRAMS
@pytest.mark.parametrize("mode", ["immediate", "background"])
def test_every_call_has_its_events(program: Program, mode: Any) -> None:
    backend = MockBackend("hello", mode=mode)
    events = asyncio.run(events_of(program, backend=backend))
    backend.close()
    check_order(events)
    ends = [event for event in events if isinstance(event, CallEnded)]
    assert [(end.kind, end.name, end.text, end.error) for end in ends[:2]] == [
        ("gen", "x", "hello", None),
        ("select", "y", "b", None),
    ]
    assert sorted((end.name, end.branch, end.text) for end in ends[2:]) == [("z", (0,), "hello"), ("z", (1,), "hello")]
    assert all(end.meta is not None for end in ends)
    if mode == "background":
        assert [event.text for event in events if isinstance(event, TextPiece) and event.name == "x"] == list("hello")
    last = events[-1]
    assert isinstance(last, RunEnded)
    assert last.return_value == "returned"
    assert last.error is None
    assert last.state["z"] == ["hello", "hello"]


@given(
    pieces=st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=6),
    pauses=st.lists(st.booleans(), min_size=6, max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_pieces_pushed_at_any_time_arrive(pieces: list[str], pauses: list[bool]) -> None:
    whole = "".join(pieces) + "!"
    backend = MockBackend(whole, mode="manual")

    @function
    async def program(s: AsyncProgramState) -> None:
        s += "q" + gen("x")

    async def write() -> None:
        while not backend.waiting:
            await asyncio.sleep(0)
        (request,) = backend.waiting
        for piece, pause in zip(pieces, pauses, strict=False):
            request.push(piece)
            if pause:
                await asyncio.sleep(0)
        backend.answer_all()

    async def main() -> list[RunEvent]:
        _, events = await asyncio.gather(write(), events_of(program, backend=backend))
        return events

    events = asyncio.run(main())
    check_order(events)
    assert [event.text for event in events if isinstance(event, TextPiece)] == [*pieces, "!"]


@PROGRAMS
def test_failures_are_told_call_by_call(program: Program) -> None:
    def fail(call: GenerateCall, prompt: str) -> str:
        raise RuntimeError("no power")

    async def main() -> list[RunEvent]:
        return await events_of(program, backend=MockBackend(fail), on_error="return")

    events = asyncio.run(main())
    first, second, *_ = [event for event in events if isinstance(event, CallEnded)]
    assert isinstance(first.error, GenerationError)
    assert "no power" in str(first.error)
    assert first.meta is None
    assert second.error is not None
    assert not [event for event in events if isinstance(event, CallStarted) and event.call_id == second.call_id]
    last = events[-1]
    assert isinstance(last, RunEnded)
    assert isinstance(last.error, ProgramError)


def test_what_the_body_raises_is_raised_after_the_last_event() -> None:
    @function
    async def raises(s: AsyncProgramState) -> None:
        s += "q" + gen("x")
        await s["x"]
        raise LookupError("mine")

    seen: list[RunEvent] = []

    async def main() -> None:
        async for event in raises.astream(backend=MockBackend("ok")):
            seen.append(event)

    with pytest.raises(LookupError, match="mine"):
        asyncio.run(main())
    assert isinstance(seen[-1], RunEnded)
    assert isinstance(seen[-1].error, ProgramError)


def test_bad_arguments_are_reported_at_once() -> None:
    with pytest.raises(InvalidProgramError, match=r"plain\.astream got an unknown argument 'nonsense'"):
        plain.astream(nonsense=1)


@PROGRAMS
def test_leaving_the_iteration_cancels_the_program(program: Program) -> None:
    backend = MockBackend(mode="manual")

    async def leave_and_close() -> None:
        async with aclosing(program.astream(backend=backend)) as events:
            async for event in events:
                assert isinstance(event, CallStarted)
                break
        assert backend.waiting == ()

    async def only_leave() -> None:
        async for event in program.astream(backend=backend):
            assert isinstance(event, CallStarted)
            break
        while backend.waiting:
            await asyncio.sleep(0.001)

    asyncio.run(leave_and_close())
    asyncio.run(asyncio.wait_for(only_leave(), 60))
    assert len(backend.requests) == 2


def test_a_slow_reader_loses_nothing() -> None:
    backend = MockBackend("hello world", mode="background")

    async def main() -> list[RunEvent]:
        events = []
        async for event in plain.astream(backend=backend):
            events.append(event)
            await asyncio.sleep(0.002)
        return events

    check_order(asyncio.run(main()))
    backend.close()


def test_a_reader_among_many_programs() -> None:
    backend = MockBackend("hello", mode="background")

    async def main() -> list[list[RunEvent]]:
        return list(await asyncio.gather(*[events_of(plain, backend=backend) for _ in range(100)]))

    for events in asyncio.run(main()):
        check_order(events)
    backend.close()
