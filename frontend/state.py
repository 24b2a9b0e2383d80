"""ProgramState: one run of a program. Add text and calls to it, read values from it.

Adding never blocks: `s += gen("x")` sends the call as soon as what is before it is known and goes on. Reading blocks:
`s["x"]`, `s.text()`, `s.messages()`, `s.meta("x")` wait for the value and raise if it failed. Looking never blocks:
`"x" in s`, `repr(s)`, `s.text_so_far()`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from .appendable import AppendableState
from .async_reads import text_pieces
from .backend import Message
from .calls import CallMeta
from .errors import InvalidProgramError, ProgramError
from .meta_info import MetaInfo, meta_info_of
from .operations import Snapshot
from .scope import Scope
from .timeouts import checked_timeout
from .values import Joined, Value


class ProgramState(AppendableState):
    """One run of a program, or a branch of it. A program gets one as its first argument and never builds one.

    Ctrl-C during a read that waits cancels what it waits for: the run, or the branch.

    Outside a program whose body still runs (`Program.stream`) the state is an observer: reading a name that the body
    has not bound yet, or the whole text, waits for the body. Inside, and once the body is over, it does not.
    """

    def __init__(self, scope: Scope, *, is_observer: bool = False) -> None:
        super().__init__(scope)
        self._is_observer = is_observer

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
        timeout = checked_timeout(timeout)
        with self._cancelled_by_interrupt():
            return self._lookup(name, timeout).get(timeout)

    def meta(self, name: str, timeout: float | None = None) -> CallMeta:
        """What computing a variable took: prompt, cached and generated tokens, finish reason, logprobs, times.

        Blocks and raises like `get`.

        Raises:
            InvalidProgramError: the name was joined from branches and has several; `metas` gives them.
        """
        timeout = checked_timeout(timeout)
        value = self._lookup(name, timeout)
        if isinstance(value, Joined):
            raise InvalidProgramError(f"{name!r} was joined from {len(value.values)} branches: use metas({name!r})")
        with self._cancelled_by_interrupt():
            (meta,) = value.metas(timeout)
        return meta

    def metas(self, name: str, timeout: float | None = None) -> list[CallMeta]:
        """The meta of every call behind a variable: several after a join, in branch order. Otherwise like `meta`."""
        timeout = checked_timeout(timeout)
        with self._cancelled_by_interrupt():
            return self._lookup(name, timeout).metas(timeout)

    def get_var(self, name: str) -> Any:
        """SGLang's name for `s[name]`."""
        return self[name]

    def get_meta_info(self, name: str, timeout: float | None = None) -> MetaInfo | list[MetaInfo]:
        """What `meta` tells, as the dict that SGLang has for it; a list of them with n > 1 or after a join.

        Blocks and raises like `get`. See meta_info.py for the keys.
        """
        timeout = checked_timeout(timeout)
        with self._cancelled_by_interrupt():
            return meta_info_of(self._lookup(name, timeout), self._scope.run.backend.decode, timeout)

    @contextmanager
    def _cancelled_by_interrupt(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt as interrupt:
            self._scope.cancel("a read of it was interrupted", interrupt)
            raise

    def _lookup(self, name: str, timeout: float | None) -> Value:
        return self._scope.lookup(name, timeout, until_body_over=self._is_observer)

    def text(self, timeout: float | None = None) -> str:
        """All text so far, template text included.

        Raises:
            ProgramError: the text is incomplete, because a call failed or the body raised.
            ReadTimeoutError: not there within `timeout` seconds.
        """
        timeout = checked_timeout(timeout)
        with self._cancelled_by_interrupt():
            self._await_body(timeout)
            return self._scope.interpreter.text(timeout)

    def messages(self, timeout: float | None = None) -> list[Message]:
        """The complete chat messages as {"role", "content"}; blocks and raises like `text`."""
        timeout = checked_timeout(timeout)
        with self._cancelled_by_interrupt():
            self._await_body(timeout)
            return self._scope.interpreter.messages(timeout)

    def token_ids(self, timeout: float | None = None) -> list[int]:
        """The exact ids sent and generated so far; text added after the last call is not tokenised yet.

        Blocks and raises like `text`.
        """
        timeout = checked_timeout(timeout)
        with self._cancelled_by_interrupt():
            self._await_body(timeout)
            return self._scope.interpreter.token_ids(timeout)

    def snapshot(self, timeout: float | None = None) -> Snapshot:
        """What a conversation goes on from (Conversation.from_state). Blocks and raises like `text`."""
        timeout = checked_timeout(timeout)
        self._await_body(timeout)
        interpreter = self._scope.interpreter
        interpreter.wait(timeout)
        interpreter.raise_failure()
        return interpreter.snapshot()

    def _await_body(self, timeout: float | None) -> None:
        if self._is_observer:
            self._scope.run.wait_body_over(timeout)
        error = self._scope.run.body_error()
        if error is not None:
            raise error

    def text_iter(self, var_name: str | None = None, timeout: float | None = None) -> Iterator[str]:
        """The text, or that of one variable, from its beginning as it comes.

        Any number of iterators may run at any time; each yields everything. The pieces joined are `text()` or
        `s[name]` (the first sample's text, with n > 1).

        Raises:
            ProgramError: after what there was of the text, if something failed.
            UnknownVariableError: there is no such name.
            ReadTimeoutError: nothing new came for `timeout` seconds.
        """
        return self._text_pieces(var_name, checked_timeout(timeout))

    def _text_pieces(self, var_name: str | None, timeout: float | None) -> Iterator[str]:
        with self._cancelled_by_interrupt():
            if var_name is not None:
                yield from self._lookup(var_name, timeout).chunks(timeout)
                return
            yield from self._scope.interpreter.iter_text(timeout, until_body_over=self._is_observer)
            self._await_body(timeout)

    def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False, timeout: float | None = None
    ) -> AsyncIterator[Any]:
        """`async for piece in s.text_async_iter(...)`: what `text_iter` yields, without blocking the event loop.

        Args:
            return_meta_data: yield pairs of a piece and the call's meta info, as SGLang does, for one variable. It is
                empty until the call has ended; the last pair, whose piece is "", has all of it.

        Raises:
            InvalidProgramError: return_meta_data without a name.
            Exception: as text_iter does.
        """
        pieces = text_pieces(self._scope, var_name, checked_timeout(timeout), is_observer=self._is_observer)
        if not return_meta_data:
            return pieces
        if var_name is None:
            raise InvalidProgramError(
                "text_async_iter(return_meta_data=True) needs a name: the text as a whole has none"
            )
        return self._with_meta(pieces, var_name)

    async def _with_meta(
        self, pieces: AsyncIterator[str], name: str
    ) -> AsyncIterator[tuple[str, MetaInfo | list[MetaInfo]]]:
        async for piece in pieces:
            yield piece, {}
        yield "", self.get_meta_info(name)

    def sync(self, timeout: float | None = None) -> None:
        """Block until everything added so far, in this state and its branches, has run, well or not.

        Raises:
            ReadTimeoutError: something takes longer than `timeout` seconds.
        """
        timeout = checked_timeout(timeout)
        with self._cancelled_by_interrupt():
            if self._is_observer:
                self._scope.run.wait_body_over(timeout)
            self._scope.wait(timeout)

    def error(self) -> ProgramError | None:
        """What went wrong first: the body's exception, else the first failed call here or in a branch. Blocks."""
        self.sync()
        return self._scope.run.body_error() or self._scope.failure()
