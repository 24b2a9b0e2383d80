"""Timeouts of reads: what may be given, alike in every read; and a read that timed out leaves nothing behind."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from ramet.frontend.async_state import AsyncProgramState
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.conversation import Conversation
from ramet.frontend.errors import InvalidProgramError, ReadTimeoutError
from ramet.frontend.primitives import gen
from ramet.frontend.program import function
from ramet.frontend.run_context import RunContext
from ramet.frontend.scope import Scope
from ramet.frontend.state import ProgramState
from ramet.frontend.timeouts import checked_timeout

READS: list[Callable[[Any, Any], Any]] = [
    lambda s, timeout: s.get("x", timeout),
    lambda s, timeout: s.meta("x", timeout),
    lambda s, timeout: s.metas("x", timeout),
    lambda s, timeout: s.get_meta_info("x", timeout),
    lambda s, timeout: s.text(timeout),
    lambda s, timeout: s.messages(timeout),
    lambda s, timeout: s.token_ids(timeout),
    lambda s, timeout: s.sync(timeout),
]
BAD = [-1, -0.5, math.nan, True, "1", [1]]


def test_what_a_timeout_may_be() -> None:
    assert [checked_timeout(value) for value in (None, 0, 2.5, np.float32(0.5))] == [None, 0, 2.5, 0.5]
    assert [checked_timeout(value) for value in (math.inf, 1e30, 10**400)] == [None, None, None]
    for bad in BAD:
        with pytest.raises(InvalidProgramError, match=r"timeout=.* is not allowed"):
            checked_timeout(bad)


@pytest.mark.parametrize("is_there", [True, False])
def test_every_read_checks_its_timeout(is_there: bool) -> None:
    scope = Scope(RunContext("test", MockBackend("ok", mode="immediate" if is_there else "manual"), {}))
    state = ProgramState(scope)
    state += "q" + gen("x")
    awaited = AsyncProgramState(scope)

    async def read(what: Callable[[Any, Any], Any], timeout: object) -> object:
        return await what(awaited, timeout)

    for bad in BAD:
        for what in (*READS, lambda s, timeout: s.text_iter("x", timeout)):
            with pytest.raises(InvalidProgramError, match=r"timeout=.* is not allowed"):
                what(state, bad)
            with pytest.raises(InvalidProgramError, match=r"timeout=.* is not allowed"):
                asyncio.run(read(what, bad))
    for what in READS:
        if is_there:
            assert what(state, math.inf) == what(state, 1e30) == asyncio.run(read(what, 1e30))
        else:
            with pytest.raises(ReadTimeoutError):
                what(state, 0)
            with pytest.raises(ReadTimeoutError):
                asyncio.run(read(what, 0))


def test_a_conversation_checks_before_it_asks() -> None:
    backend = MockBackend("ok")
    chat = Conversation(backend=backend)
    with pytest.raises(InvalidProgramError, match="timeout=nan is not allowed"):
        chat.ask("q", timeout=math.nan)
    assert backend.requests == []
    assert chat.ask("q", timeout=math.inf).text == "ok"


async def read_all(pieces: AsyncIterator[str]) -> list[str]:
    return [piece async for piece in pieces]


def test_reads_that_timed_out_leave_no_callback_behind() -> None:
    backend = MockBackend("ok", mode="manual")

    @function
    async def program(s: AsyncProgramState) -> str:
        s += "q" + gen("x")
        forks = s.fork(2)
        forks += gen("y")
        joined = forks.join()
        assert "y" in joined
        call = s._scope.variables()["x"]
        for _ in range(3):
            for read in (
                *(lambda: s.get("x", 0.0001), lambda: s.get("y", 0.0001), lambda: s.text(0.0001)),
                *(lambda: read_all(s.text_iter("x", 0.0001)), lambda: read_all(s.text_iter(timeout=0.0001))),
            ):
                with pytest.raises(ReadTimeoutError):
                    await read()
        interpreter: Any = s._scope.interpreter
        branch_call: Any = forks[0]._scope.variables()["y"]
        held: Any = call
        assert len(held._when_done) == len(interpreter._when_idle) == len(branch_call._when_done) == 0
        assert len(interpreter._when_changed) == 0
        assert held.generation._listeners == []
        backend.answer_all()
        return str(await s["x"])

    assert asyncio.run(program.arun(backend=backend)).return_value == "ok"
