"""Replies: what a model answered, and an answer under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ...tool_formats import ToolCall
from ..backend import Message
from ..calls import Call, CallMeta, Failure, ParseFailure
from ..errors import InvalidProgramError, ReadTimeoutError
from ..execution import Execution, Outcome
from ..handle import Handle
from ..timeouts import checked_timeout


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model answered. `str()` is its text.

    Attributes:
        text: without tool calls.
        tool_calls: what the model wants to have called before it goes on.
        tool_error: why a tool call in the text cannot be read; the text is then all the model wrote.
        message: as it stands in the conversation.
        dropped: messages that the context limit cost before this reply.
        max_tokens: what the reply could have at most: less than was asked for where the context left less.
        meta: what it took: cached and computed tokens, finish reason, times. None if it was stopped.
    """

    text: str
    tool_calls: tuple[ToolCall, ...]
    tool_error: str | None
    message: Message
    dropped: tuple[Message, ...]
    max_tokens: int | None
    meta: CallMeta | None
    _value: object = field(default=None, repr=False)

    @property
    def value(self) -> Any:
        """What the text says: the Python value where dtype, a model class or parse=True asked for one, else the text.

        Raises:
            UnparsedTextError: the text did not become the value asked for.
        """
        if isinstance(self._value, ParseFailure):
            raise self._value.to_error()
        return self._value

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped before its end."""
        return self.meta is None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a conversation does when its open reply ends: with an outcome, stopped after some text, or not at all."""

    accept: Callable[[Outcome], Reply]
    keep: Callable[[str], Reply]
    undo: Callable[[], None]


class PendingReply:
    """A reply under way. Read it to its end with `result`, follow it with `chunks`, or `stop` it.

    Until one of these has ended it, the conversation takes no other message. For one thread at a time.
    """

    def __init__(self, call: Call, execution: Execution, settlement: Settlement) -> None:
        self._call = call
        self._execution = execution
        self._settlement = settlement
        self._shown = ""
        self._reply: Reply | None = None
        self._failure: Failure | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the conversation has taken it in, or given it up."""
        return self._reply is not None or self._failure is not None

    def text_so_far(self) -> str:
        """The text there is now. Does not block."""
        generation = self._execution.generation
        return "" if generation is None else generation.text_so_far()

    def result(self, timeout: float | None = None) -> Reply:
        """The whole reply, which is then part of the conversation.

        Raises:
            GenerationError: it failed. The conversation is as it was before it was asked.
            ReadTimeoutError: it is not there within `timeout` seconds; it goes on.
        """
        seconds = checked_timeout(timeout)
        for handle in self._execution.handles:
            _wait(handle, seconds)
        return self._settle()

    def chunks(self, timeout: float | None = None) -> Iterator[str]:
        """The text as it comes; a choice comes as one piece. Raises like `result`."""
        generation = self._execution.generation
        if generation is not None and not self.is_settled:
            for piece in generation.chunks(checked_timeout(timeout)):
                self._shown += piece
                yield piece
        reply = self.result(timeout)
        if generation is None:
            yield reply.text

    def stop(self) -> Reply:
        """Give the rest up. What `chunks` has yielded, or the text there is if nobody followed, becomes the reply."""
        if self.is_settled:
            return self._settle()
        text = self._shown or self.text_so_far()
        self._cancel()
        self._call.fail(Failure("the reply was stopped", None))
        self._reply = self._settlement.keep(text)
        return self._reply

    def abandon(self) -> None:
        """Give it up altogether: the conversation is as it was before it was asked."""
        if not self.is_settled:
            self._cancel()
            self._give_up(Failure("the reply was abandoned", None))

    async def aresult(self) -> Reply:
        """Like `result`, without holding up the event loop."""
        for handle in self._execution.handles:
            await _settled(handle)
        return self._settle()

    async def achunks(self) -> AsyncIterator[str]:
        """Like `chunks`, without holding up the event loop."""
        generation = self._execution.generation
        if generation is not None and not self.is_settled:
            changed = asyncio.Event()
            announce = _in_loop(changed.set)
            generation.add_listener(announce)
            while True:
                changed.clear()
                is_done = generation.is_done
                piece = generation.text_so_far()[len(self._shown) :]
                self._shown += piece
                if piece:
                    yield piece
                elif is_done:
                    break
                else:
                    await changed.wait()
        reply = await self.aresult()
        if generation is None:
            yield reply.text

    def _settle(self) -> Reply:
        """The call is over: let the conversation take it in, once."""
        if self._failure is not None:
            raise self._failure.to_error()
        if self._reply is None:
            try:
                outcome = self._execution.finish()
            except BaseException as error:
                self._give_up(Failure(f"the reply failed: {error}", error))
                return self._settle()
            self._call.succeed(outcome.value, outcome.text, outcome.meta)
            self._reply = self._settlement.accept(outcome)
        return self._reply

    def _give_up(self, failure: Failure) -> None:
        self._failure = failure
        self._call.fail(failure)
        self._settlement.undo()

    def _cancel(self) -> None:
        for handle in self._execution.handles:
            handle.cancel()


def _wait(handle: Handle[Any], timeout: float | None) -> None:
    """Block until the handle is settled, well or not."""
    try:
        handle.result(timeout)
    except BaseException as error:
        if handle.is_done and error is handle.error():
            return
        if isinstance(error, TimeoutError):
            raise ReadTimeoutError(f"there is no reply yet after {timeout} s; it is still running") from None
        raise


def checked_no_open_reply(pending: PendingReply | None) -> None:
    """
    Raises:
        InvalidProgramError: the reply has neither been read to its end nor stopped.
    """
    if pending is not None and not pending.is_settled:
        raise InvalidProgramError(
            "the reply before is still open: read it to its end (result(), or the whole stream) or stop() it; "
            "it is the conversation's pending_reply"
        )


async def _settled(handle: Handle[Any]) -> None:
    future = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    handle.add_done_callback(_in_loop(wake))
    await future


def _in_loop(action: Callable[[], None]) -> Callable[[], None]:
    """An action of this event loop that any thread may call, also once the loop is closed."""
    loop = asyncio.get_running_loop()

    def call() -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(action)

    return call
