"""Events of a run, as `Program.astream` yields them: what each call gives, as it comes, and how the program ended.

Callbacks of the run's threads only note which call has news; the loop's thread then reads what is new of it. What a
call has given stays in it, so nothing is lost however late the reader comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from .calls import Call, CallMeta
from .errors import ProgramError
from .loop_signals import Bell
from .state import ProgramState


@dataclass(frozen=True, slots=True)
class CallEvent:
    """Something about one gen or select.

    Attributes:
        call_id: position of the call in the run, as in `state.calls()`.
        kind: of the call.
        name: the variable it binds, if any.
        branch: () for the program itself, (1, 0) for branch 0 of branch 1.
    """

    call_id: int
    kind: Literal["gen", "select"]
    name: str | None
    branch: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallStarted(CallEvent):
    """It went to the backend. A call that is given up before that has no such event."""


@dataclass(frozen=True, slots=True)
class TextPiece(CallEvent):
    """More of its text: of the first sample, with n > 1; of a select the choice, whole.

    Attributes:
        text: the pieces of a call joined are its text.
    """

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded(CallEvent):
    """It has ended. Every call has this event, once.

    Attributes:
        text: all of it; "" for one that failed.
        meta: what it took; None if it failed.
        error: why it has no value, or none but its text. None if all is well.
    """

    text: str
    meta: CallMeta | None
    error: ProgramError | None


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The body and all its calls have ended. The last event.

    Attributes:
        state: finished, so that reading it never waits.
        return_value: what the body returned.
        error: what went wrong first, as `state.error()` has it.
    """

    state: ProgramState
    return_value: object
    error: ProgramError | None


RunEvent = CallStarted | TextPiece | CallEnded | RunEnded


class EventFeed:
    """Events of one run's calls, for one reader. Made in the reader's event loop."""

    def __init__(self) -> None:
        self._bell = Bell()
        self._news: deque[Call] = deque()
        self._followed: dict[int, _FollowedCall] = {}

    def watch(self, call: Call) -> None:
        """A call was asked for. From any thread."""
        call.when_started(partial(self._follow_text, call))
        call.when_done(partial(self.tell, call))

    def _follow_text(self, call: Call) -> None:
        self.tell(call)
        generation = call.generation
        if generation is not None:
            generation.add_listener(partial(self.tell, call))

    def tell(self, call: Call | None = None) -> None:
        """There is news of a call, or of the program. From any thread."""
        if call is not None:
            self._news.append(call)
        self._bell.ring()

    async def wait(self) -> None:
        """Until there may be news."""
        await self._bell.wait()

    def take(self) -> Iterator[RunEvent]:
        """What is new of the calls that were told of. In the reader's thread."""
        self._bell.clear()
        while self._news:
            call = self._news.popleft()
            followed = self._followed.setdefault(call.record.call_id, _FollowedCall(call))
            yield from followed.news()


class _FollowedCall:
    """How much of a call the reader has been told."""

    def __init__(self, call: Call) -> None:
        assert call.record.kind in ("gen", "select"), call.record
        self._call = call
        record = call.record
        kind: Literal["gen", "select"] = "gen" if record.kind == "gen" else "select"
        self._place = (record.call_id, kind, record.name, record.branch)
        self._is_started = False
        self._is_ended = False
        self._num_pieces = 0

    def news(self) -> Iterator[RunEvent]:
        call = self._call
        if self._is_ended:
            return
        is_done = call.is_done  # before the text is looked at, so that all of it is there then
        generation = call.generation if call.is_started else None
        if not self._is_started and call.record.submitted_at is not None:
            self._is_started = True
            yield CallStarted(*self._place)
        pieces = generation.chunks_from(self._num_pieces) if generation is not None else []
        self._num_pieces += len(pieces)
        for piece in pieces:
            yield TextPiece(*self._place, piece)
        if not is_done:
            return
        self._is_ended = True
        if generation is None and call.text:
            yield TextPiece(*self._place, call.text)
        failure = call.record.failure
        yield CallEnded(*self._place, call.text, call.record.meta, None if failure is None else failure.to_error())
