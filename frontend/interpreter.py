"""Interpreter: runs one state's operations in order, without a thread of its own.

Operations wait in a queue. Whoever adds one, or settles the call that was in the way, executes as many as can run now:
literal text is collected, a gen or select goes to the backend, and what follows it waits for the handle's callback.
So a state costs no thread, branches of a fork run side by side, and adding to a state never blocks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from .backend import Message, ProgramHint
from .calls import Call, Failure, ParseFailure
from .errors import InvalidProgramError, ProgramCancelledError, ReadTimeoutError
from .execution import Execution, submit
from .primitives import RoleBegin, RoleEnd, Text, with_article
from .run_context import RunContext
from .token_log import TokenLog


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a branch starts from. `text` is all text so far, `role_text` that of the open message."""

    tokens: TokenLog
    text: str
    messages: tuple[Message, ...]
    role: str | None
    role_text: str
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class ForkOp:
    """Hand this state to branches, which wait for it."""

    branches: tuple[Interpreter, ...]


@dataclass(frozen=True, slots=True)
class HintOp:
    """Tell the backend something, once all that was added before has run."""

    hint: ProgramHint


Operation = Text | RoleBegin | RoleEnd | Call | ForkOp | HintOp

Phase = Literal["idle", "executing", "settled", "waiting"]


class Interpreter:
    """Runs the operations of one state. Public methods may be called from any thread.

    Phases: `idle` (queue empty), `executing` (some thread runs operations), `settled` (the call that thread has just
    submitted is already over), `waiting` (for a call's handle or, in a new branch, for the fork).
    """

    def __init__(self, run: RunContext, *, is_branch: bool = False) -> None:
        self._run = run
        self._changed = threading.Condition()
        self._queue: deque[Operation] = deque()
        self._phase: Phase = "waiting" if is_branch else "idle"
        self._execution: Execution | None = None
        self._failure: Failure | None = None
        self._parse_failure: ParseFailure | None = None
        self._tokens = TokenLog(run.backend)
        self._spans: list[str | Call] = []
        self._messages: list[Message] = []
        self._role: str | None = None
        self._role_text: list[str] = []
        run.when_body_over(self._notify)
        if is_branch:
            run.begin_work()

    # What the program does

    def add(self, operations: Sequence[Operation]) -> None:
        """Queue operations and run what can run now. Never blocks on a call."""
        with self._changed:
            self._queue.extend(operations)
            if self._phase != "idle":
                return
            self._phase = "executing"
        self._run.begin_work()
        self._drain()

    def start(self, snapshot: Snapshot) -> None:
        """Begin as a branch of another state."""
        self._tokens = snapshot.tokens
        self._messages = list(snapshot.messages)
        self._role = snapshot.role
        self._role_text = [snapshot.role_text]
        with self._changed:
            self._failure = self._failure or snapshot.failure
            if snapshot.text:
                self._spans.append(snapshot.text)
        self._resume()

    def cancel(self, failure: Failure) -> None:
        """Give up what is running or queued; calls without a value get this failure. A finished state is unchanged."""
        with self._changed:
            if self._phase == "idle" and not self._queue:
                return
            self._failure = self._failure or failure
            execution = self._execution
        if execution is not None:
            for handle in execution.handles:
                handle.cancel()

    # What readers see

    @property
    def failure(self) -> Failure | None:
        """Why the state is incomplete, as far as is known now."""
        return self._failure

    @property
    def first_failure(self) -> Failure | None:
        """What went wrong first, a text that did not become a value included, as far as is known now."""
        return self._parse_failure or self._failure

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return self._is_idle()

    def _is_idle(self) -> bool:
        return self._phase == "idle" and not self._queue

    @property
    def num_open_calls(self) -> int:
        """How many calls that were added have not ended."""
        with self._changed:
            return sum(isinstance(operation, Call) for operation in self._queue) + (self._execution is not None)

    def wait(self, timeout: float | None = None) -> None:
        """Block until everything added so far has run, well or not.

        Raises:
            ReadTimeoutError: it takes longer than `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_idle, timeout):
                raise ReadTimeoutError(f"the program still has calls running after {timeout} s")

    def raise_failure(self) -> None:
        """
        Raises:
            ProgramError: a call of this state, or of the one it was forked from, has failed.
        """
        if self._failure is not None:
            raise self._failure.to_error()

    def text(self, timeout: float | None = None) -> str:
        """All text; blocks until everything added so far has run. Raises like `wait` and `raise_failure`."""
        self.wait(timeout)
        self.raise_failure()
        return self.text_so_far()

    def text_so_far(self) -> str:
        """The text there is now; never blocks."""
        with self._changed:
            spans = list(self._spans)
        return "".join(span if isinstance(span, str) else span.text_so_far() for span in spans)

    def messages(self, timeout: float | None = None) -> list[Message]:
        """The complete chat messages; blocks until everything added so far has run. Raises like `text`."""
        self.wait(timeout)
        self.raise_failure()
        with self._changed:
            return [dict(message) for message in self._messages]

    def token_ids(self, timeout: float | None = None) -> list[int]:
        """The ids that are final; text after the last call is not among them. Blocks and raises like `text`."""
        self.wait(timeout)
        self.raise_failure()
        with self._changed:
            return list(self._tokens.token_ids)

    def iter_text(self, timeout: float | None = None, *, until_body_over: bool = False) -> Iterator[str]:
        """All text from the beginning as it comes.

        Ends when everything added so far has run and, if wanted, the program's body has ended.

        Raises:
            ProgramError: after what there was of the text, if a call failed.
            ReadTimeoutError: nothing new came for `timeout` seconds.
        """
        position = 0
        while True:
            with self._changed:
                if not self._changed.wait_for(partial(self._has_span_or_end, position, until_body_over), timeout):
                    raise ReadTimeoutError(f"no new text for {timeout} s; the program is still running")
                span = self._spans[position] if position < len(self._spans) else None
            if span is None:
                self.raise_failure()
                return
            position += 1
            if isinstance(span, str):
                yield span
            else:
                yield from span.chunks(timeout)

    def _has_span_or_end(self, position: int, until_body_over: bool) -> bool:
        is_end = self._is_idle() and (self._run.is_body_over or not until_body_over)
        return is_end or position < len(self._spans)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # Running operations

    def _drain(self) -> None:
        """Run operations until the queue is empty or a call is in the way. Only the thread that set the phase to
        `executing` may be here."""
        while True:
            with self._changed:
                operation = self._queue.popleft() if self._queue else None
                if operation is None:
                    self._phase = "idle"
                    self._changed.notify_all()
            if operation is None:
                self._run.end_work()
                return
            execution = self._execute(operation)
            if execution is None:
                continue
            with self._changed:
                if self._phase == "executing":
                    self._phase = "waiting"
                    return
                self._phase = "executing"

    def _resume(self) -> None:
        """What was in the way is over."""
        with self._changed:
            if self._phase == "executing":
                self._phase = "settled"
                return
            assert self._phase == "waiting"
            self._phase = "executing"
        self._drain()

    def _execute(self, operation: Operation) -> Execution | None:
        """Run one operation; the execution if its outcome comes later."""
        if isinstance(operation, ForkOp):
            self._hand_over(operation)
            return None
        if isinstance(operation, HintOp):
            self._run.hint(operation.hint)
            return None
        failure = self._failure or self._run.cancellation
        if failure is not None:
            self._fail(failure)
            if isinstance(operation, Call):
                operation.fail(failure.of_dependent(operation.record))
            return None
        if isinstance(operation, Call):
            return self._submit(operation)
        try:
            self._add_literal(operation)
        except Exception as error:
            self._fail(Failure(f"{with_article(self._role or 'chat')} message cannot be written: {error}", error))
        return None

    def _submit(self, call: Call) -> Execution | None:
        try:
            execution = submit(call, self._tokens, self._run)
        except Exception as error:
            self._fail_call(call, error)
            return None
        with self._changed:
            self._execution = execution
            self._spans.append(call)
            is_cancelled = self._failure is not None or self._run.cancellation is not None
            self._changed.notify_all()
        call.start(execution.generation)
        if is_cancelled:
            for handle in execution.handles:
                handle.cancel()
        self._await_handles(call, execution, 0)
        return execution

    def _await_handles(self, call: Call, execution: Execution, idx: int) -> None:
        if idx == len(execution.handles):
            self._settle(call, execution)
            return
        execution.handles[idx].add_done_callback(partial(self._await_handles, call, execution, idx + 1))

    def _settle(self, call: Call, execution: Execution) -> None:
        """The call is over: take its outcome and go on."""
        with self._changed:
            self._execution = None
        try:
            outcome = execution.finish()
        except BaseException as error:
            self._fail_call(call, error)
        else:
            self._role_text.append(outcome.text)
            if isinstance(outcome.value, ParseFailure):
                self._parse_failure = self._parse_failure or outcome.value
            call.succeed(outcome.value, outcome.text, outcome.meta)
        self._resume()

    def _fail_call(self, call: Call, error: BaseException) -> None:
        cancelled = self._failure or self._run.cancellation
        if cancelled is not None and cancelled.error_type is ProgramCancelledError:
            self._fail(cancelled)
            call.fail(cancelled.of_dependent(call.record))
            return
        failure = Failure(f"{call.record.describe()} failed: {error}", error)
        self._fail(failure)
        call.fail(failure)

    def _fail(self, failure: Failure) -> None:
        with self._changed:
            self._failure = self._failure or failure

    def _hand_over(self, fork: ForkOp) -> None:
        if self._failure is None and len(fork.branches) > 1:
            try:
                self._tokens.share()
            except Exception as error:
                self._fail(Failure(f"the text before a fork cannot be tokenised: {error}", error))
        text = self.text_so_far()
        for branch in fork.branches:
            branch.start(
                Snapshot(
                    tokens=self._tokens.branch(),
                    text=text,
                    messages=tuple(self._messages),
                    role=self._role,
                    role_text="".join(self._role_text),
                    failure=self._failure,
                )
            )

    def _add_literal(self, operation: Text | RoleBegin | RoleEnd) -> None:
        if isinstance(operation, Text):
            self._tokens.add_text(operation.text)
            self._role_text.append(operation.text)
            self._show(operation.text)
            return
        if isinstance(operation, RoleBegin):
            segments = self._run.backend.role_prefix(self._messages, operation.role)
            self._role = operation.role
            self._role_text = []
        else:
            if self._role != operation.role:
                raise InvalidProgramError(f"{operation.role} cannot be closed: the open role is {self._role}")
            segments = self._run.backend.role_suffix(self._messages, operation.role)
            message = {"role": operation.role, "content": "".join(self._role_text)}
            with self._changed:
                self._messages.append(message)
            self._role = None
        for segment in segments:
            self._tokens.add_text(segment.text, is_template=segment.is_template)
        self._show("".join(segment.text for segment in segments))

    def _show(self, text: str) -> None:
        if not text:
            return
        with self._changed:
            self._spans.append(text)
            self._changed.notify_all()
