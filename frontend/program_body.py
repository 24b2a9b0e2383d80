"""ProgramBody: the function of a program: which arguments it takes, and how it is run to its end.

A plain body runs in the caller's thread, or in one of a few that `body_threads` has. A coroutine runs in the caller's
event loop, or in one of its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .async_reads import all_idle
from .async_state import AsyncProgramState
from .body_threads import body_threads
from .calls import Failure
from .errors import InvalidProgramError, ProgramCancelledError, raised_message
from .loop_signals import settled
from .primitives import Expression
from .scope import Scope
from .state import ProgramState

Body = Callable[..., object]


class ProgramBody:
    """The function of a program.

    Attributes:
        name: of the function.
        function: what was decorated.
        signature: its parameters; the first is the state.
        is_async: whether it is a coroutine function.
    """

    def __init__(self, function: Body) -> None:
        """
        Raises:
            InvalidProgramError: the function takes no state, or is a generator function.
        """
        self.name: str = function.__name__
        self.function = function
        self.signature = _checked_signature(function)
        self._state_name = next(iter(self.signature.parameters))
        self.is_async = inspect.iscoroutinefunction(function)

    @property
    def parameter_names(self) -> str:
        """Those after the state, for messages."""
        return ", ".join(list(self.signature.parameters)[1:]) or "no arguments"

    def arguments(
        self, args: tuple[Any, ...], own: Mapping[str, Any], ahead: Mapping[str, Any]
    ) -> inspect.BoundArguments:
        """The body's arguments; `ahead` holds those that the others may replace.

        Raises:
            InvalidProgramError: they do not fit.
        """
        taken = list(self.signature.parameters)[1 : 1 + len(args)]
        bound = {name: value for name, value in ahead.items() if name not in taken}
        try:
            return self.signature.bind(None, *args, **{**bound, **own})
        except TypeError as error:
            raise InvalidProgramError(
                f"wrong arguments for {self.name}: {error}; it takes {self.parameter_names}"
            ) from None

    def named(self, arguments: inspect.BoundArguments) -> dict[str, object]:
        """The arguments after the state, by name."""
        return {name: value for name, value in arguments.arguments.items() if name != self._state_name}

    # Running: each hands back what the body raised. Calls that are still running then are cancelled.

    def execute(self, scope: Scope, arguments: inspect.BoundArguments) -> BaseException | None:
        """Run the body in this thread; a coroutine in an event loop of its own, which must not be inside another.

        Raises:
            KeyboardInterrupt: of a coroutine; of a plain body it is handed back like anything else.
        """
        if self.is_async:
            return asyncio.run(self._execute_here(scope, arguments))
        error: BaseException | None = None
        scope.run.begin_body(self.named(arguments))
        try:
            result = self.function(ProgramState(scope), *arguments.args[1:], **arguments.kwargs)
            self._take(scope, result)
        except BaseException as raised:
            error = raised
            scope.cancel(raised_message(self.name, raised), raised)
        scope.run.end_body(error)
        return error

    async def aexecute(self, scope: Scope, arguments: inspect.BoundArguments) -> BaseException | None:
        """Run the body without blocking the loop of this thread, and wait for all its calls.

        Raises:
            CancelledError: the task was cancelled; the program is cancelled then.
        """
        try:
            if self.is_async:
                error = await self._execute_here(scope, arguments)
            else:
                error = await self._execute_in_thread(scope, arguments)
            await all_idle(scope)
        except asyncio.CancelledError as cancelled:
            _end_cancelled(scope, cancelled)
            raise
        return error

    async def _execute_here(self, scope: Scope, arguments: inspect.BoundArguments) -> BaseException | None:
        error: BaseException | None = None
        scope.run.begin_body(self.named(arguments))
        try:
            coroutine: Any = self.function(AsyncProgramState(scope), *arguments.args[1:], **arguments.kwargs)
            self._take(scope, await coroutine)
        except asyncio.CancelledError as cancelled:
            _end_cancelled(scope, cancelled)
            raise
        except BaseException as raised:
            error = raised
            scope.cancel(raised_message(self.name, raised), raised)
        scope.run.end_body(error)
        return error

    async def _execute_in_thread(self, scope: Scope, arguments: inspect.BoundArguments) -> BaseException | None:
        future = body_threads.submit(lambda: self.execute(scope, arguments))
        try:
            await settled(future)
        except asyncio.CancelledError:
            future.cancel()  # if the body has not begun
            raise
        return future.result(timeout=0)

    def _take(self, scope: Scope, result: object) -> None:
        """What the body returned."""
        if isinstance(result, Expression):
            raise InvalidProgramError(
                f"{self.name} returned an expression, which does nothing: append it to the state with +="
            )
        scope.return_value = result


def _end_cancelled(scope: Scope, cancelled: asyncio.CancelledError) -> None:
    """The task that ran the program was cancelled. A plain body may go on in its thread, but whatever it asks for is
    refused, and nobody waits for it."""
    reason = f"the program {scope.run.program_name!r} was cancelled with its task"
    scope.cancel(reason, cancelled)
    scope.run.end_without_body(Failure(reason, cancelled, ProgramCancelledError))


def _checked_signature(function: Body) -> inspect.Signature:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidProgramError(
            f"{function.__name__} is a generator function; a program is a plain function or `async def` without yield"
        )
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in positional:
        raise InvalidProgramError(
            f"{function.__name__}{signature} takes no state: its first parameter must be one, such as s"
        )
    return signature
