"""Async programs: reads are awaited and never block the loop; cancelling a task frees its requests; no thread each."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from ramet.frontend.async_state import AsyncProgramState
from ramet.frontend.backend import GenerateCall
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.body_threads import NUM_BODY_THREADS
from ramet.frontend.errors import (
    ForkError,
    GenerationError,
    InvalidProgramError,
    ProgramCancelledError,
    ProgramError,
    ReadTimeoutError,
    UnknownVariableError,
)
from ramet.frontend.primitives import assistant, gen, select, user
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState


def echo(call: GenerateCall, prompt: str) -> str:
    if "poison" in prompt:
        raise RuntimeError("no power")
    return f"<{prompt[-8:]}>"


async def turns(num: int = 20) -> None:
    """Let every other task go on as far as it can by itself."""
    for _ in range(num):
        await asyncio.sleep(0)


async def answer_until_done(backend: MockBackend, main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine whose calls are answered whenever nothing else can go on."""
    task = asyncio.ensure_future(main)
    while not task.done():
        await turns()
        backend.answer_all()
    return task.result()


@function
async def reads_everything(s: AsyncProgramState, question: str) -> dict[str, object]:
    s += user(question)
    s += assistant("A: " + gen("x", max_tokens=4))
    s += user("b or c?") + assistant(select("y", ["b", "cc"]))
    pieces = [piece async for piece in s.text_iter("x")]
    return {
        "x": await s["x"],
        "y": await s.get("y"),
        "pieces": "".join(pieces),
        "text": await s.text(),
        "iterated": "".join([piece async for piece in s.text_iter()]),
        "messages": await s.messages(),
        "num_tokens": len(await s.token_ids()),
        "finish_reason": (await s.meta("x")).finish_reason,
        "num_metas": len(await s.metas("y")),
        "error": await s.error(),
    }


@pytest.mark.parametrize("mode", ["immediate", "background", "manual"])
def test_awaited_reads_are_those_of_a_plain_program(mode: Any) -> None:
    backend = MockBackend("hello", mode=mode)
    state = asyncio.run(answer_until_done(backend, reads_everything.arun("go", backend=backend)))
    backend.close()
    seen = state.return_value
    assert seen == {
        "x": "hell",
        "y": "b",
        "pieces": "hell",
        "text": state.text(),
        "iterated": state.text(),
        "messages": state.messages(),
        "num_tokens": len(state.token_ids()),
        "finish_reason": "length",
        "num_metas": 1,
        "error": None,
    }
    assert [message["content"] for message in state.messages()] == ["go", "A: hell", "b or c?", "b"]


def test_an_async_program_runs_from_plain_code_in_a_loop_of_its_own() -> None:
    backend = MockBackend("hello", mode="background")
    state = reads_everything.run("go", backend=backend)
    assert state["x"] == "hell"
    streamed = reads_everything.stream("go", backend=backend)
    assert "".join(streamed.text_iter()) == state.text()
    assert [item["y"] for item in reads_everything.run_batch([("a",), ("b",)], backend=backend)] == ["b", "b"]
    backend.close()


def test_plain_entrances_are_refused_inside_a_running_loop() -> None:
    @function
    async def program(s: AsyncProgramState) -> None:
        s += "a"

    async def main() -> None:
        with pytest.raises(InvalidProgramError, match=r"use `await program.arun\(...\)`"):
            program.run(backend=MockBackend())
        with pytest.raises(InvalidProgramError, match=r"use `await program.arun_batch\(...\)`"):
            program.run_batch([()], backend=MockBackend())
        with pytest.raises(InvalidProgramError, match=r"arun does not take 'stream': its state is finished"):
            await program.arun(backend=MockBackend(), stream=True)

    asyncio.run(main())


def test_an_interleaved_program_waits_without_blocking_the_loop() -> None:
    backend = MockBackend(["one", "two"], mode="manual")
    order: list[str] = []

    @function
    async def program(s: AsyncProgramState, name: str) -> None:
        s += name + gen("x")
        order.append(f"{name} asked")
        order.append(f"{name} {await s['x']}")

    async def main() -> None:
        tasks = [asyncio.create_task(program.arun(name, backend=backend)) for name in "ab"]
        await turns()
        assert order == ["a asked", "b asked"]
        backend.answer(backend.waiting[1])
        await turns()
        assert order == ["a asked", "b asked", "b one"]
        backend.answer_all()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert order[-1] == "a two"


def test_forks_join_and_stream_with_awaits() -> None:
    @function
    async def program(s: AsyncProgramState) -> dict[str, object]:
        s += "q"
        forks = s.fork(3)
        for idx, branch in enumerate(forks):
            branch += f" {idx}" + gen("x")
            assert isinstance(branch, AsyncProgramState)
        own = [await branch["x"] for branch in forks]
        streamed = ["".join([piece async for piece in branch.text_iter()]) for branch in forks]
        joined = forks.join()
        return {"own": own, "joined": await joined["x"], "parent": await s["x"], "streamed": streamed}

    backend = MockBackend(echo, mode="manual")
    seen = asyncio.run(answer_until_done(backend, program.arun(backend=backend))).return_value
    expected = ["<q 0>", "<q 1>", "<q 2>"]
    assert seen == {
        "own": expected,
        "joined": expected,
        "parent": expected,
        "streamed": [f"q {idx}<q {idx}>" for idx in range(3)],
    }


def test_joined_failures_are_raised_where_they_are_awaited() -> None:
    @function
    async def program(s: AsyncProgramState, on_error: str) -> object:
        forks = s.fork(2)
        forks += ["q0", "q1 poison"]
        forks += gen("x")
        return await forks.join(on_error=on_error)["x"]  # type: ignore[arg-type]

    with pytest.raises(ForkError) as failure:
        asyncio.run(program.arun("raise", backend=MockBackend(echo)))
    assert failure.value.results[0] == "<q0>"
    state = asyncio.run(program.arun("return", backend=MockBackend(echo)))
    assert isinstance(state.return_value, list)
    assert isinstance(state.return_value[1], GenerationError)


def test_a_read_that_was_not_awaited_is_no_value() -> None:
    @function
    async def program(s: AsyncProgramState) -> None:
        s += "a" + gen("x")
        read = s["x"]
        assert repr(read) == "<s['x'], to be awaited>"
        for use in (str, bool, len, list, lambda value: value == "ok", lambda value: f"{value}", lambda v: "a" + v):
            with pytest.raises(TypeError, match=r"await it, as in `value = await s\['x'\]`"):
                use(read)
        assert await read == "ok"
        with pytest.raises(UnknownVariableError, match="'y'; variables so far: 'x'"):
            s["y"]

    asyncio.run(program.arun(backend=MockBackend("ok")))


def test_reads_time_out() -> None:
    @function
    async def program(s: AsyncProgramState) -> None:
        s += "a" + gen("x")
        reads: list[Callable[[], Awaitable[object]]] = [
            lambda: s.get("x", timeout=0.001),
            lambda: s.meta("x", timeout=0.001),
            lambda: s.text(timeout=0.001),
            lambda: s.sync(timeout=0.001),
            lambda: anext(aiter(s.text_iter("x", timeout=0.001))),
        ]
        for read in reads:
            with pytest.raises(ReadTimeoutError, match=r"0\.001 s"):
                await read()
        s.cancel()

    asyncio.run(program.arun(backend=MockBackend(mode="manual")))


def test_what_a_body_raises_comes_out_of_arun() -> None:
    @function
    async def raises(s: AsyncProgramState) -> None:
        s += "a" + gen("x")
        raise LookupError("mine")

    backend = MockBackend(mode="manual")
    with pytest.raises(LookupError, match="mine"):
        asyncio.run(raises.arun(backend=backend))
    assert backend.waiting == ()
    state = asyncio.run(raises.arun(backend=backend, on_error="return"))
    error = state.error()
    assert isinstance(error, ProgramError)
    assert isinstance(error.__cause__, LookupError)


def test_cancelling_a_task_frees_the_requests() -> None:
    backend = MockBackend(mode="manual")

    @function
    async def reads(s: AsyncProgramState) -> None:
        s += "a" + gen("x") + gen("y")
        await s["x"]

    @function
    async def returns(s: AsyncProgramState) -> None:
        s += "a" + gen("x")

    @function
    def plain(s: ProgramState) -> None:
        s += "a" + gen("x")
        s["x"]

    async def main() -> None:
        for program in (reads, returns, plain):
            task = asyncio.create_task(program.arun(backend=backend))
            while not backend.waiting:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert backend.waiting == ()

    asyncio.run(main())


def test_a_plain_body_that_is_cancelled_in_its_thread_asks_for_nothing_more() -> None:
    backend = MockBackend(mode="manual")
    may_go_on, is_over = threading.Event(), threading.Event()
    seen: list[BaseException] = []

    @function
    def plain(s: ProgramState) -> None:
        may_go_on.wait(60)
        s += "a" + gen("x")
        try:
            s["x"]
        except ProgramError as error:
            seen.append(error)
        is_over.set()

    async def main() -> None:
        task = asyncio.create_task(plain.arun(backend=backend))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    may_go_on.set()
    assert is_over.wait(60)
    assert backend.requests == []
    assert isinstance(seen[0], ProgramCancelledError)


def test_nested_programs() -> None:
    @function
    async def inner(s: AsyncProgramState, what: str) -> str:
        s += what + gen("x")
        return str(await s["x"]).upper()

    @function
    def adds(s: ProgramState, what: str) -> str:
        s += what + gen("z")
        return what

    @function
    def peeks(s: ProgramState) -> str:
        s += "p" + gen("p")
        return str(s["p"])

    @function
    async def outer(s: AsyncProgramState) -> tuple[str, str, str]:
        result = await inner(s, "i")
        assert adds(s, "j") == "j"
        with pytest.raises(InvalidProgramError, match="may add to the state but not read from it"):
            peeks(s)
        return result, await s["z"], await s["p"]

    state = asyncio.run(outer.arun(backend=MockBackend(["one", "two", "three"])))
    assert state.return_value == ("ONE", "two", "three")
    assert state.text() == "ionejtwopthree"

    @function
    def plain_outer(s: ProgramState) -> None:
        inner(s, "i")

    with pytest.raises(InvalidProgramError, match="inner is async and cannot be called inside a plain program"):
        plain_outer.run(backend=MockBackend())


def test_context_variables_are_those_of_the_task() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    @function
    async def sets(s: AsyncProgramState) -> str:
        seen = variable.get()
        variable.set("inner")
        return seen

    @function
    def plain(s: ProgramState) -> str:
        return variable.get()

    async def main() -> list[object]:
        variable.set("outer")
        first = await sets.arun(backend=MockBackend())
        second = await sets.arun(backend=MockBackend())
        batch = await sets.arun_batch([(), ()], backend=MockBackend(), max_concurrency=1)
        in_thread = await plain.arun(backend=MockBackend())
        return [state.return_value for state in (first, second, *batch, in_thread)]

    # as in any coroutine: an await runs in the caller's context, an item of a batch in a copy of it
    assert asyncio.run(main()) == ["outer", "inner", "inner", "inner", "inner"]


@pytest.mark.parametrize("is_async", [True, False])
def test_thousands_of_programs_take_few_threads(is_async: bool) -> None:
    backend = MockBackend(echo, mode="manual")

    @function
    async def in_loop(s: AsyncProgramState, idx: int) -> None:
        s += f"q{idx}" + gen("x") + gen("y")
        await s["x"]
        s += gen("z")

    @function
    def in_thread(s: ProgramState, idx: int) -> None:
        s += f"q{idx}" + gen("x") + gen("y") + gen("z")

    program = in_loop if is_async else in_thread
    num_before = threading.active_count()

    async def main() -> None:
        tasks = [asyncio.create_task(program.arun(idx, backend=backend)) for idx in range(1000)]
        while len(backend.waiting) < 1000:
            await asyncio.sleep(0.001)
        assert threading.active_count() - num_before < 60
        while not all(task.done() for task in tasks):
            backend.answer_all()
            await turns(3)
        for idx, task in enumerate(tasks):
            state = task.result()
            assert state["x"] == f"<q{idx}>"
            assert state.error() is None

    asyncio.run(main())


def test_plain_bodies_that_wait_for_programs_never_wait_for_each_others_threads() -> None:
    @function
    def inner(s: ProgramState, idx: int) -> str:
        s += f"q{idx}" + gen("x")
        return str(s["x"])

    @function
    def outer(s: ProgramState, idx: int) -> list[object]:
        async def both() -> list[ProgramState]:
            return list(await asyncio.gather(*[inner.arun(idx, backend=backend) for _ in range(2)]))

        states = [*asyncio.run(both()), *inner.run_batch([(idx,)], backend=backend)]
        return [state.return_value for state in states]

    backend = MockBackend(echo)
    num_items = NUM_BODY_THREADS * 2
    states = outer.run_batch([(idx,) for idx in range(num_items)], backend=backend, max_concurrency=num_items)
    assert [state.return_value for state in states] == [[f"<q{idx}>"] * 3 for idx in range(num_items)]


@pytest.mark.model
def test_on_the_real_engine(backend: Any) -> None:
    async def main() -> list[ProgramState]:
        return list(
            await asyncio.gather(
                *[reads_everything.arun(f"Say {idx}.", backend=backend, temperature=0) for idx in range(4)]
            )
        )

    for state in asyncio.run(main()):
        seen = state.return_value
        assert isinstance(seen, dict)
        assert seen["pieces"] == seen["x"] == state["x"]
        assert seen["text"] == seen["iterated"] == state.text()
