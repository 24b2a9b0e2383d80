"""ProgramState: one run of a program. Add text and calls to it, read values from it.

Adding never blocks: `s += gen("x")` sends the call as soon as what is before it is known and goes on. Reading blocks:
`s["x"]`, `s.text()`, `s.messages()`, `s.meta("x")` wait for the value and raise if it failed. Looking never blocks:
`"x" in s`, `repr(s)`, `s.text_so_far()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

from .backend import Message
from .calls import CallMeta, CallRecord
from .errors import InvalidProgramError, ProgramError
from .fork import Appendable, ForkGroup
from .primitives import RoleBegin, RoleEnd, as_expression
from .scope import Scope
from .values import Joined, OnError, Value


class ProgramState:
    """One run of a program, or a branch of it. A program gets one as its first argument and never builds one.

    Outside a program whose body still runs (`Program.stream`) the state is an observer: reading a name that the body
    has not bound yet, or the whole text, waits for the body. Inside, and once the body is over, it does not.
    """

    def __init__(self, scope: Scope, *, is_observer: bool = False) -> None:
        self._scope = scope
        self._is_observer = is_observer

    # Adding

    def __iadd__(  # type: ignore[misc]  # __add__ never returns
        self, expression: Appendable | Sequence[Appendable]
    ) -> ProgramState:
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

    def fork(self, size: int = 1) -> ForkGroup[ProgramState]:
        """Branches that start from this state and run side by side. What they share is computed once. Does not block.

        Raises:
            InvalidProgramError: size is not an integer from 1 to 4096, or forks are nested more than 64 deep.
        """
        branches = [ProgramState(scope) for scope in self._scope.fork(size)]
        return ForkGroup(branches, self._join)

    def _join(self, branches: Sequence[ProgramState], on_error: OnError) -> Mapping[str, Joined]:
        return self._scope.join([branch._scope for branch in branches], on_error)

    # Reading: blocks, and raises what went wrong

    def __getitem__(self, name: str) -> Any:
        """The value of a variable: the text of a gen or select, or the Python value a gen was asked for with dtype, a
        model class or parse=True; a list of them after a join or with n > 1.

        Raises:
            UnknownVariableError: (a KeyError) there is no such name.
            UnparsedTextError: (a GenerationError) the text is there, but did not become the value asked for.
            GenerationError, ForkError, ProgramCancelledError: it has no value, with the cause chained.
            ProgramError: the body raised before it bound the name.
        """
        return self.get(name)

    def __iter__(self) -> NoReturn:
        raise TypeError("a state cannot be iterated over: s.text_iter() gives its text in pieces, s.calls() its calls")

    def get(self, name: str, timeout: float | None = None) -> Any:
        """Like `s[name]`, and raises ReadTimeoutError if the value is not there within `timeout` seconds."""
        return self._lookup(name, timeout).get(timeout)

    def meta(self, name: str, timeout: float | None = None) -> CallMeta:
        """What computing a variable took: prompt, cached and generated tokens, finish reason, logprobs, times.

        Blocks and raises like `get`.

        Raises:
            InvalidProgramError: the name was joined from branches and has several; `metas` gives them.
        """
        value = self._lookup(name, timeout)
        if isinstance(value, Joined):
            raise InvalidProgramError(f"{name!r} was joined from {len(value.values)} branches: use metas({name!r})")
        (meta,) = value.metas(timeout)
        return meta

    def metas(self, name: str, timeout: float | None = None) -> list[CallMeta]:
        """The meta of every call behind a variable: several after a join, in branch order. Otherwise like `meta`."""
        return self._lookup(name, timeout).metas(timeout)

    def _lookup(self, name: str, timeout: float | None) -> Value:
        return self._scope.lookup(name, timeout, until_body_over=self._is_observer)

    def text(self, timeout: float | None = None) -> str:
        """All text so far, template text included.

        Raises:
            ProgramError: the text is incomplete, because a call failed or the body raised.
            ReadTimeoutError: not there within `timeout` seconds.
        """
        self._await_body(timeout)
        return self._scope.interpreter.text(timeout)

    def messages(self, timeout: float | None = None) -> list[Message]:
        """The complete chat messages as {"role", "content"}; blocks and raises like `text`."""
        self._await_body(timeout)
        return self._scope.interpreter.messages(timeout)

    def token_ids(self, timeout: float | None = None) -> list[int]:
        """The exact ids sent and generated so far; text added after the last call is not tokenised yet.

        Blocks and raises like `text`.
        """
        self._await_body(timeout)
        return self._scope.interpreter.token_ids(timeout)

    def _await_body(self, timeout: float | None) -> None:
        if self._is_observer:
            self._scope.run.wait_body_over(timeout)
        error = self._scope.run.body_error()
        if error is not None:
            raise error

    def text_iter(self, name: str | None = None, timeout: float | None = None) -> Iterator[str]:
        """The text, or that of one variable, from its beginning as it comes.

        Any number of iterators may run at any time; each yields everything. The pieces joined are `text()` or
        `s[name]` (the first sample's text, with n > 1).

        Raises:
            ProgramError: after what there was of the text, if something failed.
            UnknownVariableError: there is no such name.
            ReadTimeoutError: nothing new came for `timeout` seconds.
        """
        if name is not None:
            yield from self._lookup(name, timeout).chunks(timeout)
            return
        yield from self._scope.interpreter.iter_text(timeout, until_body_over=self._is_observer)
        self._await_body(timeout)

    def sync(self, timeout: float | None = None) -> None:
        """Block until everything added so far, in this state and its branches, has run, well or not.

        Raises:
            ReadTimeoutError: something takes longer than `timeout` seconds.
        """
        if self._is_observer:
            self._scope.run.wait_body_over(timeout)
        self._scope.wait(timeout)

    def error(self) -> ProgramError | None:
        """What went wrong first: the body's exception, else the first failed call here or in a branch. Blocks."""
        self.sync()
        return self._scope.run.body_error() or self._scope.failure()

    def cancel(self) -> None:
        """Give up every call of this state and its branches that has no value yet; reading those raises."""
        self._scope.cancel("cancel() was called on the program")

    @property
    def return_value(self) -> object:
        """What the program's body returned; None while it runs."""
        return self._scope.return_value

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
        return f"<ProgramState of {self._scope.run.program_name}: {self._status()}; variables: {shown or 'none'}>"

    def _status(self) -> str:
        if self._scope.run.body_error() is not None:
            return "raised"
        if self._scope.interpreter.failure is not None:
            return "failed"
        return "done" if self._scope.interpreter.is_idle and self._scope.run.is_body_over else "running"
