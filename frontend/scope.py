"""Scope: what a state knows in the order the program was written: its names, its open role, its last call.

The interpreter may be far behind, still waiting for the model; the scope is always up to date, so that a misplaced role
or a missing name is reported on the line that is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar

from .backend import CallExpected, ProgramForked, ProgramJoined
from .calls import Call, CallKind, CallRecord, Failure
from .errors import InvalidProgramError, ProgramCancelledError, ProgramError, UnknownVariableError
from .interpreter import ForkOp, HintOp, Interpreter, Operation
from .primitives import ROLES, Expression, Gen, RoleBegin, RoleEnd, Select, Text, with_article
from .run_context import RunContext
from .values import Joined, OnError, Value

MAX_BRANCHES = 4096
MAX_CALLS_BEFORE = 1_000_000
MAX_FORK_DEPTH = 64
"""Starting a branch of a branch takes stack; far fewer than this are in use anywhere."""


class Scope:
    """Program-order side of one state.

    Attributes:
        run: shared with all branches.
        interpreter: runs the operations.
        branches: scopes forked from this one, in order.
        return_value: what the program's body returned.
        interpreter_type: what the operations are run by.
    """

    interpreter_type: ClassVar[type[Interpreter]] = Interpreter

    def __init__(self, run: RunContext, *, is_branch: bool = False) -> None:
        self.run = run
        self.interpreter = self.interpreter_type(run, is_branch=is_branch)
        self.branches: list[Scope] = []
        self.return_value: object = None
        self._bound = threading.Condition()
        self._variables: dict[str, Value] = {}
        self._inherited: dict[str, Value] = {}
        self._role: str | None = None
        self._has_messages = False
        self._last_call_id: int | None = None
        self._branch: tuple[int, ...] = ()
        run.when_body_over(self._notify)

    def _notify(self) -> None:
        with self._bound:
            self._bound.notify_all()

    # Adding

    def add(self, expression: Expression) -> None:
        """Check an expression, record its calls, bind its names and hand it to the interpreter.

        Raises:
            InvalidProgramError: a role is opened or closed out of order, or a call stands between messages.
            InvalidSamplingParamsError: a gen's options contradict those of the run.
        """
        parts = expression.parts()
        role, has_messages = self._role, self._has_messages
        for part in parts:
            if role is None and has_messages and isinstance(part, Gen | Select):
                raise _between_messages(part)
            role = _next_role(role, part)
            has_messages = has_messages or role is not None
        params = [self.run.sampling_params(part.options) if isinstance(part, Gen) else None for part in parts]
        self._role, self._has_messages = role, has_messages
        operations: list[Operation] = []
        for part, sampling_params in zip(parts, params, strict=True):
            if isinstance(part, Gen):
                record = self._record("gen", part.name)
                record.sampling_params = sampling_params
                operations.append(self._bind_call(Call(record, value_type=part.value_type, is_healed=part.is_healed)))
            elif isinstance(part, Select):
                record = self._record("select", part.name)
                record.choices = part.choices
                operations.append(self._bind_call(Call(record, part.method)))
            elif isinstance(part, Text):
                self._record("text").text = part.text
                operations.append(part)
            else:
                assert isinstance(part, RoleBegin | RoleEnd), part
                operations.append(part)
        self.interpreter.add(operations)

    def _record(self, kind: CallKind, name: str | None = None) -> CallRecord:
        parent_ids = () if self._last_call_id is None else (self._last_call_id,)
        return self._record_after(kind, parent_ids, name)

    def _record_after(self, kind: CallKind, parent_ids: tuple[int, ...], name: str | None = None) -> CallRecord:
        record = self.run.graph.add(kind, parent_ids, self._branch, name)
        self._last_call_id = record.call_id
        return record

    def _bind_call(self, call: Call) -> Call:
        if call.record.name is not None:
            self._bind({call.record.name: call})
        return call

    def _bind(self, values: Mapping[str, Value]) -> None:
        with self._bound:
            self._variables.update(values)
            self._bound.notify_all()

    def expect_call(self, num_calls_before: int | None) -> None:
        """Tell the backend when the next call comes, once all that was added before has run.

        Raises:
            InvalidProgramError: the number is not an integer from 0 to a million, or None.
        """
        is_number = isinstance(num_calls_before, int) and not isinstance(num_calls_before, bool)
        if num_calls_before is not None and not (is_number and 0 <= num_calls_before <= MAX_CALLS_BEFORE):
            raise InvalidProgramError(
                f"expect_call(after={num_calls_before!r}) is not allowed: give about how many other calls come before "
                f"the next one of this state, from 0 to {MAX_CALLS_BEFORE}, or None if it makes no more"
            )
        self.interpreter.add([HintOp(CallExpected(self.run.run_id, self._branch, num_calls_before))])

    # Branches

    def fork(self, size: int) -> list[Scope]:
        """New branches that start from here.

        Raises:
            InvalidProgramError: size is not an integer from 1 to 4096, or forks are nested more than 64 deep.
        """
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_BRANCHES:
            raise InvalidProgramError(
                f"fork({size!r}) is not allowed: give a number of branches from 1 to {MAX_BRANCHES}"
            )
        if len(self._branch) >= MAX_FORK_DEPTH:
            raise InvalidProgramError(
                f"forks are nested more than {MAX_FORK_DEPTH} deep: go on in the same branch where only one is needed"
            )
        record = self._record("fork")
        record.num_branches = size
        branches = [self._new_branch(len(self.branches) + idx, record) for idx in range(size)]
        told = ProgramForked(self.run.run_id, self._branch, len(self.branches), size)
        self.branches.extend(branches)
        self.interpreter.add([HintOp(told), ForkOp(tuple(branch.interpreter for branch in branches))])
        return branches

    def _new_branch(self, idx: int, fork: CallRecord) -> Scope:
        branch = type(self)(self.run, is_branch=True)
        branch._inherited = dict(self._variables)
        branch._variables = dict(self._variables)
        branch._role = self._role
        branch._has_messages = self._has_messages
        branch._last_call_id = fork.call_id
        branch._branch = (*self._branch, idx)
        return branch

    def join(self, branches: Sequence[Scope], on_error: OnError) -> dict[str, Joined]:
        """Bind what the branches bound since they were forked, as lists in branch order. Does not block."""
        values: dict[str, list[Value]] = {}
        for branch in branches:
            for name, value in branch._variables.items():
                if branch._inherited.get(name) is not value:
                    values.setdefault(name, []).append(value)
        parent_ids = tuple(branch._last_call_id for branch in branches if branch._last_call_id is not None)
        self._record_after("join", parent_ids).num_branches = len(branches)
        num_calls = max((branch.interpreter.num_open_calls for branch in branches), default=0)
        paths = tuple(branch._branch for branch in branches)
        self.interpreter.add([HintOp(ProgramJoined(self.run.run_id, self._branch, paths, num_calls))])
        joined = {name: Joined(name, items, on_error) for name, items in values.items()}
        self._bind(joined)
        return joined

    # Reading

    def variables(self) -> dict[str, Value]:
        with self._bound:
            return dict(self._variables)

    def lookup(self, name: str, timeout: float | None, *, until_body_over: bool) -> Value:
        """What a name is bound to, perhaps without a value yet. An observer waits for the body to bind it.

        Raises:
            UnknownVariableError: the name is not bound.
            ProgramError: nor will it be, because the body raised.
            ReadTimeoutError: the body did not bind it within `timeout` seconds.
        """
        with self._bound:
            if until_body_over:
                self._bound.wait_for(lambda: name in self._variables or self.run.is_body_over, timeout)
            value = self._variables.get(name)
            known = list(self._variables)
        if value is not None:
            return value
        if until_body_over:
            self.run.wait_body_over(0)
        error = self.run.body_error()
        if error is not None:
            raise error
        raise UnknownVariableError(name, known)

    def wait(self, timeout: float | None = None) -> None:
        """Block until everything added so far, here and in all branches, has run, well or not.

        Raises:
            ReadTimeoutError: something takes longer than `timeout` seconds.
        """
        self.interpreter.wait(timeout)
        for branch in list(self.branches):
            branch.wait(timeout)

    def failure(self) -> ProgramError | None:
        """The first failed call, of this state or of its branches in order, as far as is known now."""
        own = self.interpreter.first_failure
        if own is not None:
            return own.to_error()
        return next((error for branch in list(self.branches) if (error := branch.failure()) is not None), None)

    def cancel(self, reason: str, cause: BaseException | None = None) -> None:
        """Give up everything that has no value yet, here and in all branches; for the whole run, also what its body
        may still add. Reads then raise with this reason and cause."""
        failure = Failure(reason, cause, ProgramCancelledError)
        if not self._branch:
            self.run.cancel(failure)
        self.interpreter.cancel(failure)
        for branch in list(self.branches):
            branch.cancel(reason, cause)


def _between_messages(part: Gen | Select) -> InvalidProgramError:
    kind = "gen" if isinstance(part, Gen) else "select"
    what = kind if part.name is None else f"{kind} {part.name!r}"
    return InvalidProgramError(
        f"{what} stands between messages: put it in s += assistant({kind}(...)) or `with s.assistant():`"
    )


def _next_role(role: str | None, part: Expression) -> str | None:
    """The open role after `part`."""
    if isinstance(part, RoleBegin):
        if part.role not in ROLES:
            raise InvalidProgramError(f"unknown role {part.role!r}; roles are {', '.join(ROLES)}")
        if role is not None:
            raise InvalidProgramError(
                f"cannot open {with_article(part.role)} message inside the open {role} message: close that first"
            )
        return part.role
    if isinstance(part, RoleEnd):
        if role != part.role:
            raise InvalidProgramError(
                f"cannot close {with_article(part.role)} message: the open message is {role or 'none'}"
            )
        return None
    return role
