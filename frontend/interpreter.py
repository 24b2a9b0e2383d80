"""Interpreter: runs one state's operations in order, without a thread of its own.

Operations wait in a queue. Whoever adds one, or settles the call that was in the way, executes as many as can run now:
literal text is collected, a gen or select goes to the backend, and what follows it waits for the handle's callback.
So a state costs no thread, branches of a fork run side by side, and adding to a state never blocks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from .backend import Message, TextSegment
from .calls import Call, Failure, ParseFailure
from .continuation import History
from .errors import ProgramCancelledError, ReadTimeoutError
from .execution import Execution, submit
from .handle import when_all_done
from .operations import (
    AppendBranches,
    ForkOp,
    HintOp,
    Mark,
    Operation,
    Snapshot,
    SpanBegin,
    SpanEnd,
    fail_operation,
)
from .primitives import RoleBegin, RoleEnd, Text, with_article
from .run_context import RunContext
from .token_log import TokenLog
from .transcript import Transcript

Phase = Literal["idle", "executing", "settled", "waiting"]


class Interpreter:
    """Runs the operations of one state. Public methods may be called from any thread.

    Phases: `idle` (queue empty), `executing` (some thread runs operations), `settled` (the call that thread has just
    submitted is already over), `waiting` (for a call's handle or, in a new branch, for the fork).

    Attributes:
        transcript: what the state says so far.
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
        self.transcript = Transcript()
        self._when_changed: list[Callable[[], None]] = []
        self._when_idle: list[Callable[[], None]] = []
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
        self.transcript = Transcript(snapshot.text, snapshot.messages, snapshot.role, snapshot.role_text)
        with self._changed:
            self._failure = self._failure or snapshot.failure
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

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when everything added so far has run; now if it has. It must not block, raise or call
        back."""
        with self._changed:
            if not self._is_idle():
                self._when_idle.append(callback)
                return
        callback()

    def when_changed(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, at the next change that `has_part_or_end` may tell of. Rules as for `when_idle`."""
        with self._changed:
            self._when_changed.append(callback)

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
        return self.transcript.text()

    def messages(self, timeout: float | None = None) -> list[Message]:
        """The complete chat messages; blocks until everything added so far has run. Raises like `text`."""
        self.wait(timeout)
        self.raise_failure()
        return self.transcript.messages()

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
                if not self._changed.wait_for(partial(self.has_part_or_end, position, until_body_over), timeout):
                    raise ReadTimeoutError(f"no new text for {timeout} s; the program is still running")
            part = self.transcript.part(position)
            if part is None:
                self.raise_failure()
                return
            position += 1
            if isinstance(part, str):
                yield part
            else:
                yield from part.chunks(timeout)

    def has_part_or_end(self, position: int, until_body_over: bool) -> bool:
        """Whether the text has a part number `position`, or will never have one."""
        with self._changed:
            is_end = self._is_idle() and (self._run.is_body_over or not until_body_over)
            return is_end or self.transcript.part(position) is not None

    def _notify(self) -> None:
        with self._changed:
            self._announce()

    def _announce(self) -> None:
        """Tell readers of a change. Only with the lock held."""
        self._changed.notify_all()
        callbacks, self._when_changed = self._when_changed, []
        if self._is_idle():
            callbacks += self._when_idle
            self._when_idle = []
        for callback in callbacks:
            callback()

    # Running operations

    def _drain(self) -> None:
        """Run operations until the queue is empty or a call is in the way. Only the thread that set the phase to
        `executing` may be here."""
        while True:
            with self._changed:
                operation = self._queue.popleft() if self._queue else None
                if operation is None:
                    self._phase = "idle"
                    self._run.end_work()  # before anybody learns of it: who sees the end finds the backend told
                    self._announce()
                    return
            if not self._execute(operation):
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

    def _execute(self, operation: Operation) -> bool:
        """Run one operation. Returns whether its outcome comes later."""
        if isinstance(operation, ForkOp):
            self._hand_over(operation)
            return False
        if isinstance(operation, HintOp):
            self._run.hint(operation.hint)
            return False
        failure = self._failure or self._run.cancellation
        if failure is not None:
            self._fail(failure)
            fail_operation(operation, failure)
            return False
        if isinstance(operation, Call):
            return self._submit(operation)
        if isinstance(operation, AppendBranches):
            when_all_done(operation.handles, partial(self._append_branches, operation))
            return True
        if isinstance(operation, Mark):
            self._mark(operation)
            return False
        try:
            self._add_literal(operation)
        except Exception as error:
            self._fail(
                Failure(f"{with_article(self.transcript.role or 'chat')} message cannot be written: {error}", error)
            )
        return False

    def _submit(self, call: Call) -> bool:
        try:
            execution = submit(call, self._tokens, self._run)
        except Exception as error:
            self._fail_call(call, error)
            return False
        with self._changed:
            self._execution = execution
            self.transcript.show(call)
            is_cancelled = self._failure is not None or self._run.cancellation is not None
            self._announce()
        call.start(execution.generation)
        if is_cancelled:
            for handle in execution.handles:
                handle.cancel()
        when_all_done(execution.handles, partial(self._settle, call, execution))
        return True

    def _settle(self, call: Call, execution: Execution) -> None:
        """The call is over: take its outcome and go on."""
        with self._changed:
            self._execution = None
        try:
            outcome = execution.finish()
        except BaseException as error:
            self._fail_call(call, error)
        else:
            self.transcript.end_call(outcome.text)
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
        snapshot = self.snapshot()
        for branch in fork.branches:
            branch.start(replace(snapshot, tokens=self._tokens.branch()))

    def snapshot(self) -> Snapshot:
        """Where the state stands. Only while no other thread runs its operations: in a fork, or once it is idle."""
        return Snapshot(
            tokens=self._tokens.branch(),
            text=self.transcript.text(),
            messages=tuple(self.transcript.messages()),
            role=self.transcript.role,
            role_text=self.transcript.role_text,
            failure=self._failure,
            backend=self._run.backend,
        )

    def _mark(self, operation: Mark) -> None:
        """Remember or hand out a part of the text. All calls before it are over."""
        if isinstance(operation, SpanBegin):
            self.transcript.begin_span(operation.span)
        elif isinstance(operation, SpanEnd):
            self.transcript.end_span(operation.span)
        else:
            operation.settle(self.transcript.own_text(), self._tokens)

    def _append_branches(self, operation: AppendBranches) -> None:
        """All branches have contributed, or failed: take it and go on."""
        for idx, handle in enumerate(operation.handles):
            try:
                contribution = handle.result(timeout=0)
                self._tokens.add(contribution.tokens)
            except Exception as error:
                self._fail(operation.failure(idx, error))
                break
            self.transcript.write(contribution.text)
        self._notify()
        self._resume()

    def _add_literal(self, operation: Text | RoleBegin | RoleEnd | History) -> None:
        if isinstance(operation, Text):
            self._tokens.add_text(operation.text)
            self.transcript.write(operation.text)
        elif isinstance(operation, RoleBegin):
            self._add_template(self._run.backend.role_prefix(self.transcript.messages(), operation.role))
            self.transcript.open_message(operation.role)
        elif isinstance(operation, RoleEnd):
            self.transcript.check_closes(operation.role)
            self._add_template(self._run.backend.role_suffix(self.transcript.messages(), operation.role))
            self.transcript.close_message(operation)
        else:
            self._tokens.commit_as(operation.token_ids)
            for text, is_template in operation.tail:
                self._tokens.add_text(text, is_template=is_template)
            self.transcript.add_messages(operation.messages)
            self.transcript.show(operation.text)
        self._notify()

    def _add_template(self, segments: Sequence[TextSegment]) -> None:
        for segment in segments:
            self._tokens.add_text(segment.text, is_template=segment.is_template)
        self.transcript.show("".join(segment.text for segment in segments))
