"""AppendableState: what every kind of state can do without waiting: take text and calls, fork, and be looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NoReturn, Self

from .calls import CallRecord
from .fork import Appendable, ForkGroup
from .primitives import RoleBegin, RoleEnd, as_expression
from .scope import Scope
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

    def system(self, expression: Appendable | None = None) -> AbstractContextManager[None]:
        """A system message: whole, if an expression is given, else around the block of a `with`."""
        return self._message("system", expression)

    def user(self, expression: Appendable | None = None) -> AbstractContextManager[None]:
        """A user message: whole, if an expression is given, else around the block of a `with`."""
        return self._message("user", expression)

    def assistant(self, expression: Appendable | None = None) -> AbstractContextManager[None]:
        """An assistant message: whole, if an expression is given, else around the block of a `with`."""
        return self._message("assistant", expression)

    def _message(self, role: str, expression: Appendable | None) -> AbstractContextManager[None]:
        if expression is None:
            return self._message_around_block(role)
        self.append([RoleBegin(role), expression, RoleEnd(role)])
        return nullcontext()

    @contextmanager
    def _message_around_block(self, role: str) -> Iterator[None]:
        self.append(RoleBegin(role))
        yield
        self.append(RoleEnd(role))

    def fork(self, size: int = 1) -> ForkGroup[Self]:
        """Branches that start from this state and run side by side. What they share is computed once. Does not block.

        Raises:
            InvalidProgramError: size is not an integer from 1 to 4096, or forks are nested more than 64 deep.
        """
        branches = [type(self)(scope) for scope in self._scope.fork(size)]
        return ForkGroup(branches, self._join)

    def _join(self, branches: Sequence[Self], on_error: OnError) -> Mapping[str, Joined]:
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
        return self._scope.interpreter.text_so_far()

    def calls(self) -> tuple[CallRecord, ...]:
        """Every call of the run so far, branches included, in the order the program asked for them."""
        return self._scope.run.graph.records()

    def __repr__(self) -> str:
        values = self._scope.variables()
        shown = ", ".join(f"{name}{'' if value.is_done else ' (pending)'}" for name, value in values.items())
        return (
            f"<{type(self).__name__} of {self._scope.run.program_name}: {self._status()}; variables: {shown or 'none'}>"
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
        """What the program's body returned; None while it runs."""
        return self._scope.return_value
