"""Interpreter: runs one state's operations in order, without a thread of its own.

Operations wait in a queue. Whoever adds one, or settles the call that was in the way, executes as many as can run now:
literal text is collected, a gen or select goes to the backend, and what follows it waits for the handle's callback.
So a state costs no thread, branches of a fork run side by side, and adding to a state never blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from .backend import Message
from .callbacks import Callback, Callbacks, Forget, nothing_to_forget
from .calls import Call, Failure, ParseFailure
from .errors import ProgramCancelledError, ReadTimeoutError, described, raise_interrupt, words_of
from .execution import Execution, Outcome, submit
from .handle import Handle, cancel_all, when_all_done
from .literals import add_literal, run_mark
from .operation_queue import OperationQueue
from .operations import (
    AppendBranches,
    Contribution,
    ForkOp,
    HintOp,
    Mark,
    Operation,
    Snapshot,
    fail_operation,
)
from .primitives import with_article
from .run_context import RunContext
from .token_log import TokenLog
from .transcript import Transcript


class Interpreter:
    """Runs the operations of one state. Public methods may be called from any thread.

    Attributes:
        transcript: what the state says so far.
    """

    def __init__(self, run: RunContext, *, is_branch: bool = False) -> None:
        self._run = run
        self._changed = threading.Condition()
        self._queue = OperationQueue(self._changed, is_branch=is_branch)
        self._execution: Execution | None = None
        self._failure: Failure | None = None
        self._parse_failure: ParseFailure | None = None
        self._tokens = TokenLog(run.backend)
        self.transcript = Transcript()
        self._when_changed = Callbacks()
        self._when_idle = Callbacks()
        run.when_body_over(self._notify)
        if is_branch:
            run.begin_work()

    # What the program does

    def add(self, operations: Sequence[Operation]) -> None:
        """Queue operations and run what can run now. Never blocks on a call.

        Raises:
            KeyboardInterrupt, SystemExit: it came meanwhile; what was queued has failed then.
        """
        with self._changed:
            if not self._queue.extend(operations):
                return
            self._run.begin_work()
            self._queue.execute_here()
        self._drain()

    def start(self, snapshot: Snapshot) -> None:
        """Begin as a branch of another state, unless it has begun."""
        with self._changed:
            if not self._queue.is_new_branch:
                return
            self._tokens = snapshot.tokens
            self.transcript = Transcript(snapshot.text, snapshot.messages, snapshot.role, snapshot.role_text)
            self._failure = self._failure or snapshot.failure
            self._queue.execute_here()
        self._drain()

    def cancel(self, failure: Failure) -> None:
        """Give up what is running or queued; calls without a value get this failure. A finished state is unchanged."""
        with self._changed:
            if self._queue.is_idle:
                return
            self._failure = self._failure or failure
            execution = self._execution
        if execution is not None:
            cancel_all(execution.handles)

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
        return self._queue.is_idle

    @property
    def num_open_calls(self) -> int:
        """How many calls that were added have not ended."""
        with self._changed:
            return self._queue.num_calls + (self._execution is not None)

    def wait(self, timeout: float | None = None) -> None:
        """Block until everything added so far has run, well or not.

        Raises:
            ReadTimeoutError: it takes longer than `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._queue.is_idle, timeout):
                raise ReadTimeoutError(f"the program still has calls running after {timeout} s")

    def when_idle(self, callback: Callback) -> Forget:
        """Call `callback` once, when everything added so far has run; now if it has. It must not block, raise or call
        back."""
        with self._changed:
            if not self._queue.is_idle:
                return self._when_idle.add(callback)
        callback()
        return nothing_to_forget

    def when_changed(self, callback: Callback) -> Forget:
        """Call `callback` once, at the next change that `has_part_or_end` may tell of. Rules as for `when_idle`."""
        return self._when_changed.add(callback)

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
            is_end = self._queue.is_idle and (self._run.is_body_over or not until_body_over)
            return is_end or self.transcript.part(position) is not None

    def _notify(self) -> None:
        with self._changed:
            self._announce()

    def _announce(self) -> None:
        """Tell readers of a change. Only with the lock held."""
        self._changed.notify_all()
        self._when_changed.call()
        if self._queue.is_idle:
            self._when_idle.call()

    # Running operations

    def _drain(self) -> None:
        """Run operations until the queue is empty or a call is in the way. Only the thread that executes may be here.

        Whatever interrupts it, the state does not stay behind half done: what was under way and queued fails.
        """
        interrupt: BaseException | None = None
        while True:
            try:
                operation = self._next()
                if operation is None or (self._execute(operation) and self._queue.has_to_wait()):
                    break
            except BaseException as error:
                interrupt = error
                if not self._give_up(error):
                    break
        if interrupt is not None:
            raise interrupt

    def _next(self) -> Operation | None:
        """The operation to run now; None if there is none, and the state is idle then."""
        with self._changed:
            operation = self._queue.next()
            if operation is None:
                try:
                    self._run.end_work()  # before anybody learns of it: who sees the end finds the backend told
                finally:
                    self._queue.end()
                    self._announce()
            return operation

    def _give_up(self, error: BaseException) -> bool:
        """What ran was interrupted: it fails, and so will all that follow. Returns whether this thread goes on."""
        failure = Failure(f"the program was interrupted: {described(error)}", error, ProgramCancelledError)
        with self._changed:
            self._failure = self._failure or failure
            if not self._queue.is_mine:
                return False
            if self._queue.is_claimed_elsewhere:
                return not self._queue.has_to_wait()
            operation = self._queue.give_up()
            execution, self._execution = self._execution, None
        if isinstance(operation, ForkOp):
            self._start(operation.branches)
        elif operation is not None:
            fail_operation(operation, failure)
        if execution is not None:
            cancel_all(execution.handles)
        return True

    def _resume(self) -> None:
        """What was in the way is over."""
        if self._queue.resume():
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
            run_mark(operation, self._tokens, self.transcript)
            return False
        try:
            add_literal(operation, self._tokens, self.transcript, self._run.backend)
        except BaseException as error:
            message = f"{with_article(self.transcript.role or 'chat')} message cannot be written: {words_of(error)}"
            self._fail(Failure(message, error))
            raise_interrupt(error)
        self._notify()
        return False

    def _submit(self, call: Call) -> bool:
        try:
            execution = submit(call, self._tokens, self._run)
        except BaseException as error:
            self._fail_call(call, error)
            raise_interrupt(error)
            return False
        with self._changed:
            self._execution = execution
            self.transcript.show(call)
            is_cancelled = self._failure is not None or self._run.cancellation is not None
            self._announce()
        call.start(execution.generation)
        if is_cancelled:
            cancel_all(execution.handles)
        when_all_done(execution.handles, partial(self._settle, call, execution))
        return True

    def _settle(self, call: Call, execution: Execution) -> None:
        """The call is over: take its outcome and go on."""
        if not self._queue.claim(call):
            return
        try:
            self._execution = None
            self._take_outcome(call, execution.finish())
        except BaseException as error:
            self._fail_call(call, error)
            if all(handle.error() is not error for handle in execution.handles):
                raise_interrupt(error)
        finally:
            self._resume()

    def _take_outcome(self, call: Call, outcome: Outcome) -> None:
        self.transcript.end_call(outcome.text)
        if isinstance(outcome.value, ParseFailure):
            self._parse_failure = self._parse_failure or outcome.value
        call.succeed(outcome.value, outcome.text, outcome.meta)

    def _fail_call(self, call: Call, error: BaseException) -> None:
        cancelled = self._failure or self._run.cancellation
        if cancelled is not None and cancelled.error_type is ProgramCancelledError:
            self._fail(cancelled)
            call.fail(cancelled.of_dependent(call.record))
            return
        failure = Failure(f"{call.record.describe()} failed: {words_of(error)}", error)
        self._fail(failure)
        call.fail(failure)

    def _fail(self, failure: Failure) -> None:
        with self._changed:
            self._failure = self._failure or failure

    def _hand_over(self, fork: ForkOp) -> None:
        if self._failure is None and len(fork.branches) > 1:
            try:
                self._tokens.share()
            except BaseException as error:
                self._fail(Failure(f"the text before a fork cannot be tokenised: {words_of(error)}", error))
                raise_interrupt(error)
        self._start(fork.branches)

    def _start(self, branches: Sequence[Interpreter]) -> None:
        snapshot = self.snapshot()
        for branch in branches:
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

    def _append_branches(self, operation: AppendBranches) -> None:
        """All branches have contributed, or failed: take it and go on."""
        if not self._queue.claim(operation):
            return
        try:
            for idx, handle in enumerate(operation.handles):
                self._append_branch(operation, idx, handle)
            self._notify()
        finally:
            self._resume()

    def _append_branch(self, operation: AppendBranches, idx: int, handle: Handle[Contribution]) -> None:
        if self._failure is not None:
            return
        try:
            contribution = handle.result(timeout=0)
            self._tokens.add(contribution.tokens)
            self.transcript.write(contribution.text)
        except BaseException as error:
            self._fail(operation.failure(idx, error))
            raise_interrupt(error)
