"""Scope: what a state knows in the order the program was written: its names, its open role, its last call.

The interpreter may be far behind, still waiting for the model; the scope is always up to date, so that a misplaced role
or a missing name is reported on the line that is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

from ..plain_numbers import plain_number
from ..sampling_params import SamplingParams
from .backend import CallExpected, ProgramForked, ProgramJoined
from .bound_values import Constant, Reasoning, TextSpan
from .callbacks import Callback, Callbacks, Forget
from .calls import Call, CallKind, CallRecord, Failure, call_site
from .continuation import History
from .errors import InvalidProgramError, ProgramCancelledError, ProgramError, UnknownVariableError
from .handle import Handle
from .interpreter import Interpreter
from .operations import AppendBranches, Contribute, Contribution, ForkOp, HintOp, Operation, SpanBegin, SpanEnd
from .primitives import ROLES, Expression, Gen, RoleBegin, RoleEnd, Select, Text, with_article
from .reasoning import REASONING_SUFFIX
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
        self._when_bound = Callbacks()
        self._variables: dict[str, Value] = {}
        self._inherited: dict[str, Value] = {}
        self._role: str | None = None
        self._has_messages = False
        self._has_content = False
        self._num_role_marks = 0
        self._last_call_id: int | None = None
        self._branch: tuple[int, ...] = ()
        run.when_body_over(self._notify)

    def _notify(self) -> None:
        with self._bound:
            self._announce_bound()

    def _announce_bound(self) -> None:
        """Names were bound, or no more will be. Only with the lock held."""
        self._bound.notify_all()
        self._when_bound.call()

    # Adding

    def add(self, expression: Expression) -> None:
        """Check an expression, record its calls, bind its names and hand it to the interpreter.

        Raises:
            InvalidProgramError: a role is opened or closed out of order, or a call stands between messages.
            InvalidSamplingParamsError: a gen's options contradict those of the run.
        """
        parts = expression.parts()
        role, has_messages = self._role, self._has_messages
        for idx, part in enumerate(parts):
            if isinstance(part, History):
                if idx or self._has_content:
                    raise InvalidProgramError("a conversation's history() stands before all else in a program")
                has_messages = True
            if role is None and has_messages and isinstance(part, Gen | Select):
                raise _between_messages(part)
            role = _next_role(role, part)
            has_messages = has_messages or role is not None
        params = [
            self.run.sampling_params(part.options, self._branch) if isinstance(part, Gen) else None for part in parts
        ]
        self._role, self._has_messages = role, has_messages
        self._has_content = self._has_content or bool(parts)
        self._num_role_marks += sum(isinstance(part, RoleBegin | RoleEnd) for part in parts)
        operations: list[Operation] = []
        for part, sampling_params in zip(parts, params, strict=True):
            if isinstance(part, Gen):
                operations.append(self._gen_call(part, sampling_params))
            elif isinstance(part, Select):
                record = self._record("select", part.name)
                record.choices = part.choices
                operations.append(self._bind_call(Call(record, part.method)))
            elif isinstance(part, Text):
                self._record("text").text = part.text
                operations.append(part)
            else:
                assert isinstance(part, RoleBegin | RoleEnd | History), part
                operations.append(part)
        self.interpreter.add(operations)

    def _gen_call(self, gen: Gen, sampling_params: SamplingParams | None) -> Call:
        record = self._record("gen", gen.name)
        record.sampling_params = sampling_params
        call = Call(
            record,
            value_type=gen.value_type,
            is_healed=gen.is_healed,
            reasoning=gen.reasoning,
            prompt_logprobs_start=self.run.prompt_logprobs_start(gen.options),
        )
        if gen.name is not None and gen.reasoning is not None:
            self.bind({gen.name + REASONING_SUFFIX: Reasoning(call, gen.reasoning)})
        return self._bind_call(call)

    def _record(self, kind: CallKind, name: str | None = None) -> CallRecord:
        parent_ids = () if self._last_call_id is None else (self._last_call_id,)
        return self._record_after(kind, parent_ids, name)

    def _record_after(self, kind: CallKind, parent_ids: tuple[int, ...], name: str | None = None) -> CallRecord:
        record = self.run.graph.add(kind, parent_ids, self._branch, name)
        self._last_call_id = record.call_id
        return record

    def _bind_call(self, call: Call) -> Call:
        self.run.announce(call)
        if call.record.name is not None:
            self.bind({call.record.name: call})
        return call

    def bind(self, values: Mapping[str, Value]) -> None:
        """Bind names, or bind them anew."""
        with self._bound:
            self._variables.update(values)
            self._announce_bound()

    def set(self, name: str, value: object) -> None:
        """Bind a name to a value that is there."""
        self.bind({_checked_name(name): Constant(name, value)})

    def begin_span(self, name: str) -> TextSpan:
        """From here on, what is added belongs to the text that `end_span` will bind."""
        span = TextSpan(_checked_name(name), call_site())
        self.interpreter.add([SpanBegin(span)])
        return span

    def end_span(self, name: str, span: TextSpan) -> None:
        """Bind the name to the text that was added since the span began."""
        self.interpreter.add([SpanEnd(span)])
        self.bind({name: span})

    @property
    def role(self) -> str | None:
        """Of the open message."""
        return self._role

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
        size = cast(int, plain_number(size))
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
        branch._inherited = self.variables()
        branch._variables = dict(branch._inherited)
        branch._role = self._role
        branch._has_messages = self._has_messages
        branch._has_content = self._has_content
        branch._num_role_marks = self._num_role_marks
        branch._last_call_id = fork.call_id
        branch._branch = (*self._branch, idx)
        return branch

    def join(self, branches: Sequence[Scope], on_error: OnError) -> dict[str, Joined]:
        """Bind what the branches bound since they were forked, as lists in branch order. Does not block."""
        values: dict[str, list[Value]] = {}
        for branch in branches:
            for name, value in branch.variables().items():
                if branch._inherited.get(name) is not value:
                    values.setdefault(name, []).append(value)
        parent_ids = tuple(branch._last_call_id for branch in branches if branch._last_call_id is not None)
        self._record_after("join", parent_ids).num_branches = len(branches)
        num_calls = max((branch.interpreter.num_open_calls for branch in branches), default=0)
        paths = tuple(branch._branch for branch in branches)
        self.interpreter.add([HintOp(ProgramJoined(self.run.run_id, self._branch, paths, num_calls))])
        joined = {name: Joined(name, items, on_error) for name, items in values.items()}
        self.bind(joined)
        return joined

    def append_branches(self, branches: Sequence[Scope]) -> None:
        """Append the text that each of the branches has added since it was forked, in their order. Does not block.

        Raises:
            InvalidProgramError: a message was opened or closed since, here or there.
        """
        for idx, branch in enumerate(branches):
            if branch._num_role_marks != self._num_role_marks:
                raise InvalidProgramError(
                    f"the text of branch {idx} cannot be appended: a message was opened or closed since the fork, and "
                    "only the text of one message can be put together from branches"
                )
        handles = tuple(Handle[Contribution]() for _ in branches)
        for branch, handle in zip(branches, handles, strict=True):
            branch.interpreter.add([Contribute(handle)])
        parent_ids = tuple(branch._last_call_id for branch in branches if branch._last_call_id is not None)
        record = self._record_after("join", parent_ids)
        record.num_branches = len(branches)
        self.interpreter.add([AppendBranches(handles, record.source)])

    # Reading

    def variables(self) -> dict[str, Value]:
        with self._bound:
            return dict(self._variables)

    def when_bound(self, callback: Callback) -> Forget:
        """Call `callback` once, when a name is bound or the body has ended. It must not block, raise or call back."""
        return self._when_bound.add(callback)

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


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidProgramError(f"the name {name!r} is not allowed: a name is a non-empty string")
    return name


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
