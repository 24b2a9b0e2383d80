"""AppendableState: what every kind of state can do without waiting: take text and calls, fork, and be looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NoReturn, Self

from .calls import CallRecord
from .errors import InvalidProgramError
from .fork import Appendable, ForkGroup, JoinMode
from .primitives import RoleBegin, RoleEnd, as_expression
from .scope import Scope
from .trace.capture import capture_trace
from .trace.notebook import is_html_repr_wanted, state_html
from .trace.program_trace import ProgramTrace
from .values import Joined, OnError


class AppendableState:
    """One run of a program, or a branch of it. Its kinds differ in how they wait for what is read."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    # Adding

    def __iadd__(  # type: ignore[misc]  # __add__ never returns
        self, expression: Appendable | Sequence[Appendable]
    ) -> Self:
        """Append text or calls.

        Raises:
            InvalidProgramError: not something that can be appended, a role opened or closed out of order, or a gen
                or select between messages.
            InvalidSamplingParamsError: a gen's options contradict those of the run.
        """
        self.append(expression)
        return self

    def __add__(self, other: object) -> NoReturn:
        raise TypeError("a state cannot be part of a sum: append to it with s += ...; its text is s.text()")

    __radd__ = __add__

    def append(self, expression: Appendable | Sequence[Appendable]) -> None:
        """The same as `+=`, as a method."""
        self._scope.add(as_expression(expression))

    def system(self, expr: Appendable | None = None) -> AbstractContextManager[None]:
        """A system message: whole, if it is given, else around the block of a `with`."""
        return self._message("system", expr)

    def user(self, expr: Appendable | None = None) -> AbstractContextManager[None]:
        """A user message: whole, if it is given, else around the block of a `with`."""
        return self._message("user", expr)

    def assistant(self, expr: Appendable | None = None) -> AbstractContextManager[None]:
        """An assistant message: whole, if it is given, else around the block of a `with`."""
        return self._message("assistant", expr)

    def _message(self, role: str, expression: Appendable | None) -> AbstractContextManager[None]:
        if expression is None:
            return self._message_around_block(role)
        self.append([RoleBegin(role), expression, RoleEnd(role)])
        return nullcontext()

    @contextmanager
    def _message_around_block(self, role: str) -> Iterator[None]:
        self.append(RoleBegin(role))
        try:
            yield
        except BaseException:
            if self._scope.role == role:  # so that a program which catches the exception can go on
                self.append(RoleEnd(role))
            raise
        self.append(RoleEnd(role))

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """Bind to `name` the text that is added inside the block of a `with`, template text included.

        The value is there when all calls in the block have ended. A block that raises binds nothing.

        Raises:
            InvalidProgramError: the name is not a non-empty string.
        """
        span = self._scope.begin_span(name)
        yield
        self._scope.end_span(name, span)

    def set_var(self, name: str, value: object) -> None:
        """Bind `name` to a value of the program's own. Branches forked later have it, and a join gathers it.

        Raises:
            InvalidProgramError: the name is not a non-empty string.
        """
        self._scope.set(name, value)

    def fork(self, size: int = 1, position_ids_offset: Sequence[int] | None = None) -> ForkGroup[Self]:
        """Branches that start from this state and run side by side. What they share is computed once. Does not block.

        Raises:
            InvalidProgramError: size is not an integer from 1 to 4096, or forks are nested more than 64 deep, or
                position_ids_offset asks for other positions than those of one text (SGLang takes and ignores it).
        """
        _check_offsets("fork", position_ids_offset)
        branches = [type(self)(scope) for scope in self._scope.fork(size)]
        return ForkGroup(branches, self._join)

    @contextmanager
    def copy(self, position_ids_offset: Sequence[int] | None = None) -> Iterator[Self]:
        """One branch, for the block of a `with`; joined when the block ends, so that each name it binds is a list of
        one value in this state, as in SGLang. A block that raises binds nothing.

        Raises:
            InvalidProgramError: position_ids_offset, as of `fork`.
        """
        _check_offsets("copy", position_ids_offset)
        branches = self.fork(1)
        yield branches[0]
        branches.join()

    def _join(self, branches: Sequence[Self], on_error: OnError, mode: JoinMode) -> Mapping[str, Joined]:
        if mode == "concate_and_append":
            self._scope.append_branches([branch._scope for branch in branches])
            return {}
        return self._scope.join([branch._scope for branch in branches], on_error)

    def expect_call(self, *, after: int | None) -> None:
        """Say when this state makes its next call: after about so many other calls of the program, or none (None).

        A hint for the backend, which may keep what it has computed of this state accordingly, once all calls added so
        far have run. It holds until the next call. Values never depend on it. Does not block.

        Raises:
            InvalidProgramError: `after` is not an integer from 0 to a million, or None.
        """
        self._scope.expect_call(after)

    # Looking: never blocks

    def __contains__(self, name: object) -> bool:
        """Whether the program has bound the name, if only to a value that is still being computed."""
        return name in self._scope.variables()

    def text_so_far(self) -> str:
        """The text there is now."""
        return self._scope.interpreter.transcript.text()

    @property
    def program_name(self) -> str:
        """Of the program that runs."""
        return self._scope.run.program_name

    @property
    def run_id(self) -> str:
        """No two runs have the same; the branches of a run share it."""
        return self._scope.run.run_id

    def calls(self) -> tuple[CallRecord, ...]:
        """Every call of the run so far, branches included, in the order the program asked for them."""
        return self._scope.run.graph.records()

    def trace(self) -> ProgramTrace:
        """What happened in the run so far, branches included: every call with its prompt, outcome, times and error.

        Works at any time, also when the program or a call of it failed. Decodes every prompt.
        """
        run = self._scope.run
        restored = run.restored_trace
        if restored is not None and len(restored.calls) == len(run.graph.records()):
            return restored
        return capture_trace(run, self._scope.interpreter.transcript.messages())

    def __repr__(self) -> str:
        values = self._scope.variables()
        shown = ", ".join(f"{name}{'' if value.is_done else ' (pending)'}" for name, value in values.items())
        return (
            f"<{type(self).__name__} of {self._scope.run.program_name}: {self._status()}; variables: {shown or 'none'}>"
        )

    def _repr_html_(self) -> str | None:
        """For notebooks: the text so far, as of now. None, for the plain repr, if RAMET_HTML_REPR=0 is set."""
        if not is_html_repr_wanted():
            return None
        interpreter, run = self._scope.interpreter, self._scope.run
        error = run.body_error() or (
            None if interpreter.first_failure is None else interpreter.first_failure.to_error()
        )
        return state_html(
            run.program_name,
            self._status(),
            self.calls(),
            interpreter.transcript.parts(),
            None if error is None else str(error),
        )

    def _status(self) -> str:
        if self._scope.run.body_error() is not None:
            return "raised"
        if self._scope.interpreter.failure is not None:
            return "failed"
        return "done" if self._scope.interpreter.is_idle and self._scope.run.is_body_over else "running"

    def cancel(self) -> None:
        """Give up every call of this state and its branches that has no value yet; reading those raises."""
        self._scope.cancel("cancel() was called on the program")

    @property
    def return_value(self) -> object:
        """What the program's body returned; None while it runs.

        Raises:
            ProgramError: the body raised.
        """
        error = self._scope.run.body_error()
        if error is not None:
            raise error
        return self._scope.return_value

    @property
    def ret_value(self) -> object:
        """SGLang's name for `return_value`."""
        return self.return_value


def _check_offsets(method: str, position_ids_offset: Sequence[int] | None) -> None:
    if position_ids_offset is not None and any(offset != 0 for offset in position_ids_offset):
        raise InvalidProgramError(
            f"{method}(position_ids_offset={position_ids_offset!r}) is not allowed: a branch goes on at the next "
            "position of its text; leave the offsets out, or at 0"
        )
