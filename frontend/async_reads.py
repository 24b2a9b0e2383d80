"""Reading a scope without blocking the event loop: the waiting is done here, the reading by the scope itself.

An observer, outside a program whose body still runs, waits for the body too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from .calls import Call
from .generation import Generation
from .loop_signals import Bell, happened, time_limit
from .reasoning import AnswerStream
from .run_context import RunContext
from .scope import Scope
from .values import Joined, Value


async def value_done(value: Value) -> None:
    """Until the value is there, or has failed."""
    if not value.is_done:
        await happened(value.when_done)


async def body_over(run: RunContext) -> None:
    """Until the body of the run has ended."""
    if not run.is_body_over:
        await happened(run.when_body_over)


async def idle(scope: Scope) -> None:
    """Until everything added so far to this state has run; not to its branches."""
    if not scope.interpreter.is_idle:
        await happened(scope.interpreter.when_idle)


async def all_idle(scope: Scope) -> None:
    """Until everything added so far, here and in all branches, has run."""
    await idle(scope)
    for branch in list(scope.branches):
        await all_idle(branch)


async def bound(scope: Scope, name: str) -> None:
    """Until the name is bound, or the body has ended without binding it."""
    bell = Bell()
    while True:
        bell.clear()
        forget = scope.when_bound(bell.ring)
        try:
            if name in scope.variables() or scope.run.is_body_over:
                return
            await bell.wait()
        finally:
            forget()


async def text_pieces(
    scope: Scope, name: str | None, timeout: float | None, *, is_observer: bool = False
) -> AsyncIterator[str]:
    """What `ProgramState.text_iter` gives, awaited. Raises as that does."""
    if name is None:
        async for piece in _all_pieces(scope, timeout, is_observer=is_observer):
            yield piece
        return
    if is_observer:
        async with time_limit(timeout, lambda: f"{name!r} was not bound within {timeout} s"):
            await bound(scope, name)
    value = scope.lookup(name, 0, until_body_over=False)
    if not isinstance(value, Call):
        if not isinstance(value, Joined):  # that says at once that it has no text to stream
            async with time_limit(timeout, lambda: f"{name!r} has no value yet after {timeout} s"):
                await value_done(value)
        for piece in value.chunks():
            yield piece
        return
    async for piece in _call_pieces(value, timeout):
        yield piece


async def _all_pieces(scope: Scope, timeout: float | None, *, is_observer: bool) -> AsyncIterator[str]:
    position = 0
    while True:
        async with time_limit(timeout, lambda: f"no new text for {timeout} s; the program is still running"):
            await _part_or_end(scope, position, is_observer=is_observer)
        part = scope.interpreter.transcript.part(position)
        if part is None:
            break
        position += 1
        if isinstance(part, str):
            yield part
        else:
            async for piece in _call_pieces(part, timeout):
                yield piece
    scope.interpreter.raise_failure()
    error = scope.run.body_error()
    if error is not None:
        raise error


async def _part_or_end(scope: Scope, position: int, *, is_observer: bool) -> None:
    is_there = partial(scope.interpreter.has_part_or_end, position, is_observer)
    if is_there():
        return
    bell = Bell()
    while True:
        bell.clear()
        forget = scope.interpreter.when_changed(bell.ring)
        try:
            if is_there():
                return
            await bell.wait()
        finally:
            forget()


async def _call_pieces(call: Call, timeout: float | None) -> AsyncIterator[str]:
    if not call.is_started:
        async with time_limit(timeout, lambda: f"{call.record.describe()} has not started after {timeout} s"):
            await happened(call.when_started)
    generation = call.generation
    if generation is not None:
        answer = None if call.reasoning is None else AnswerStream(call.reasoning)
        async for piece in _generation_pieces(generation, timeout):
            shown = piece if answer is None else answer.feed(piece)
            if shown:
                yield shown
        rest = "" if answer is None else answer.end()
        if rest:
            yield rest
    async with time_limit(timeout, lambda: f"{call.record.describe()} has no value yet after {timeout} s"):
        await value_done(call)
    call.raise_without_text()
    if generation is None:
        yield call.text


async def _generation_pieces(generation: Generation, timeout: float | None) -> AsyncIterator[str]:
    bell = Bell()
    generation.add_listener(bell.ring)
    try:
        async for piece in _pieces_at(generation, bell, timeout):
            yield piece
    finally:
        generation.remove_listener(bell.ring)


async def _pieces_at(generation: Generation, bell: Bell, timeout: float | None) -> AsyncIterator[str]:
    """What the generation writes, whenever the bell rings."""
    position = 0
    while True:
        bell.clear()
        is_last = generation.is_done
        pieces = generation.chunks_from(position)
        position += len(pieces)
        for piece in pieces:
            yield piece
        if is_last:
            return
        if not pieces:
            async with time_limit(timeout, lambda: f"no new text for {timeout} s; the generation is still running"):
                await bell.wait()
