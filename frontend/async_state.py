"""AsyncProgramState: the state of a program whose body is a coroutine: adding is as in any state, reads are awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import Any, Generic, NoReturn, TypeVar

from .appendable import AppendableState
from .appending_state import AppendingState
from .async_reads import all_idle, idle, text_pieces, value_done
from .backend import Message
from .calls import CallMeta
from .errors import InvalidProgramError, ProgramError
from .fork import ForkGroup, JoinMode
from .loop_signals import time_limit
from .meta_info import MetaInfo, meta_info_of
from .timeouts import checked_timeout
from .values import Joined, OnError, Value

T = TypeVar("T")


class Read(Generic[T]):
    """A read that has to be awaited: `answer = await s["x"]`. Taking it for the value itself raises TypeError."""

    def __init__(self, what: str, read: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._what = what
        self._read = read

    def __await__(self) -> Generator[Any, Any, T]:
        return self._read().__await__()

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(f"{self._what} is not a value yet: await it, as in `value = await {self._what}`")

    __str__ = __format__ = __bool__ = __eq__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
    __add__ = __radd__ = __mul__ = __len__ = __iter__ = __getitem__ = __contains__ = __int__ = __float__ = _refuse
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{self._what}, to be awaited>"


class AsyncProgramState(AppendableState):
    """One run of an async program, or a branch of it. A program gets one as its first argument and never builds one.

    Its reads have the names of ProgramState's, mean and raise the same, and are awaited: while one waits, the event
    loop runs other tasks. Only `in`, `repr`, `text_so_far`, `calls` and `return_value` are plain: they never wait.
    """

    def __getitem__(self, name: str) -> Read[Any]:
        """`await s["x"]`: the value of a variable.

        Raises:
            UnknownVariableError: (a KeyError, at once) there is no such name.
            GenerationError, ForkError, ProgramCancelledError: when awaited: it has no value, with the cause chained.
        """
        value = self._lookup(name)
        return Read(f"s[{name!r}]", lambda: _get(name, value, None))

    def __iter__(self) -> NoReturn:
        raise TypeError("a state cannot be iterated over: s.text_iter() gives its text in pieces, s.calls() its calls")

    async def get(self, name: str, timeout: float | None = None) -> Any:
        """Like `s[name]`, and raises ReadTimeoutError if the value is not there within `timeout` seconds."""
        timeout = checked_timeout(timeout)
        return await _get(name, self._lookup(name), timeout)

    def get_var(self, name: str) -> Read[Any]:
        """SGLang's name for `s[name]`."""
        return self[name]

    async def get_meta_info(self, name: str, timeout: float | None = None) -> MetaInfo | list[MetaInfo]:
        """What `meta` tells, as ProgramState.get_meta_info."""
        timeout = checked_timeout(timeout)
        value = self._lookup(name)
        await _done(name, value, timeout)
        return meta_info_of(value, self._scope.run.backend.decode)

    async def meta(self, name: str, timeout: float | None = None) -> CallMeta:
        """What computing a variable took, as ProgramState.meta."""
        timeout = checked_timeout(timeout)
        value = self._lookup(name)
        if isinstance(value, Joined):
            raise InvalidProgramError(f"{name!r} was joined from {len(value.values)} branches: use metas({name!r})")
        (meta,) = await _metas(name, value, timeout)
        return meta

    async def metas(self, name: str, timeout: float | None = None) -> list[CallMeta]:
        """The meta of every call behind a variable, as ProgramState.metas."""
        timeout = checked_timeout(timeout)
        return await _metas(name, self._lookup(name), timeout)

    def _lookup(self, name: str) -> Value:
        return self._scope.lookup(name, None, until_body_over=False)

    async def text(self, timeout: float | None = None) -> str:
        """All text so far, template text included, as ProgramState.text."""
        timeout = checked_timeout(timeout)
        await self._idle(timeout)
        return self._scope.interpreter.text()

    async def messages(self, timeout: float | None = None) -> list[Message]:
        """The complete chat messages as {"role", "content"}, as ProgramState.messages."""
        timeout = checked_timeout(timeout)
        await self._idle(timeout)
        return self._scope.interpreter.messages()

    async def token_ids(self, timeout: float | None = None) -> list[int]:
        """The exact ids sent and generated so far, as ProgramState.token_ids."""
        timeout = checked_timeout(timeout)
        await self._idle(timeout)
        return self._scope.interpreter.token_ids()

    async def _idle(self, timeout: float | None) -> None:
        async with time_limit(timeout, lambda: f"the program still has calls running after {timeout} s"):
            await idle(self._scope)

    def text_iter(self, var_name: str | None = None, timeout: float | None = None) -> AsyncIterator[str]:
        """`async for piece in s.text_iter("x")`: the text, or that of one variable, from its beginning as it comes.

        Any number of iterators may run at any time; each yields everything. Raises as ProgramState.text_iter.
        """
        return text_pieces(self._scope, var_name, checked_timeout(timeout))

    async def sync(self, timeout: float | None = None) -> None:
        """Until everything added so far, in this state and its branches, has run, well or not.

        Raises:
            ReadTimeoutError: something takes longer than `timeout` seconds.
        """
        timeout = checked_timeout(timeout)
        async with time_limit(timeout, lambda: f"the program still has calls running after {timeout} s"):
            await all_idle(self._scope)

    async def error(self) -> ProgramError | None:
        """What went wrong first: the first failed call here or in a branch. Waits for all of them."""
        await self.sync()
        return self._scope.run.body_error() or self._scope.failure()

    def for_plain_program(self) -> AppendingState:
        """The same state for a plain program that is called with it."""
        return AppendingState(self._scope)

    def fork(self, size: int = 1, position_ids_offset: Sequence[int] | None = None) -> AsyncForkGroup:
        """Branches that start from this state and run side by side, as ProgramState.fork. Does not wait."""
        return AsyncForkGroup(list(super().fork(size, position_ids_offset)), self._join)


class AsyncForkGroup(ForkGroup[AsyncProgramState]):
    """The branches of a fork in an async program."""

    def join(  # type: ignore[override]  # reads are awaited
        self, mode: JoinMode = "gather_variable", *, on_error: OnError = "raise"
    ) -> AsyncJoinedValues:
        """As ForkGroup.join, which does not wait either; what it gives is read with `await joined["x"]`."""
        return AsyncJoinedValues(self._joined(on_error, mode))


class AsyncJoinedValues:
    """Name to list of the branches' values, in branch order: `await joined["x"]`."""

    def __init__(self, values: Mapping[str, Joined]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Read[list[Any]]:
        """Awaiting it raises ForkError if a branch failed. A name that no branch binds is a KeyError, at once."""
        value = self._values[name]
        return Read(f"joined[{name!r}]", lambda: _get(name, value, None))

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<AsyncJoinedValues {', '.join(map(repr, self._values)) or 'none'}>"


async def _get(name: str, value: Value, timeout: float | None) -> Any:
    await _done(name, value, timeout)
    return value.get()


async def _metas(name: str, value: Value, timeout: float | None) -> list[CallMeta]:
    await _done(name, value, timeout)
    return value.metas()


async def _done(name: str, value: Value, timeout: float | None) -> None:
    if value.is_done:
        return
    async with time_limit(timeout, lambda: f"{name!r} has no value yet after {timeout} s; it is still running"):
        await value_done(value)
