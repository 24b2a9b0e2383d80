"""Program: a Python function over a state, made with @function, that can be run on any backend."""

from __future__ import annotations

import contextvars
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import update_wrapper
from typing import Any, overload

from .backend import Backend
from .batch import BatchItem, BatchOptions, run_batch
from .default_backend import as_backend, default_backend_if_set, get_default_backend
from .errors import InvalidProgramError, raised_message
from .primitives import Expression
from .program_graph import ProgramGraph
from .run_context import RunContext
from .run_options import RunOptions, split_arguments
from .scope import Scope
from .state import ProgramState
from .tracer import capture_program

Body = Callable[..., object]
Item = Mapping[str, Any] | tuple[Any, ...]


class Program:
    """A program. Its body is an ordinary function whose first parameter is the state.

    The body never runs except with the arguments of a run.
    """

    def __init__(self, body: Body, bound: Mapping[str, Any] | None = None) -> None:
        """`bound` holds arguments given ahead.

        Raises:
            InvalidProgramError: the body takes no state, or is a coroutine or generator function.
        """
        self.name: str = body.__name__
        self._body = body
        self._signature = _checked_signature(body)
        self._bound = dict(bound or {})
        update_wrapper(self, body)

    def bind(self, **arguments: Any) -> Program:
        """The same program with some arguments given ahead; `run` may still give others for them.

        Raises:
            InvalidProgramError: the program has no such parameter.
        """
        for name in arguments:
            if name not in self._signature.parameters:
                raise InvalidProgramError(
                    f"cannot bind {name!r}: {self.name} takes {_parameter_names(self._signature)}"
                )
        return Program(self._body, {**self._bound, **arguments})

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the body in this thread and return its state. Values may still be on their way; reading them waits.

        Keyword arguments the body does not declare are options: `backend` (a backend, an LLM or a model name),
        `on_error` ("raise" lets what the body raises through; "return" gives the state, whose reads raise it),
        `stream` (see `stream`), and the fields of SamplingParams (`max_new_tokens` also works) as defaults for every
        gen, but for those that constrain a text.

        Raises:
            InvalidProgramError: arguments that fit neither the body nor the options.
            InvalidSamplingParamsError: a sampling default is out of range.
            Exception: whatever the body raises; calls that still run are then cancelled.
        """
        own, options = split_arguments(self.name, self._signature, kwargs)
        return self._run(args, own, options)

    def _run(self, args: tuple[Any, ...], own: Mapping[str, Any], options: RunOptions) -> ProgramState:
        arguments = self._arguments(args, own)
        scope = self._new_scope(options)
        if options.stream:
            context = contextvars.copy_context()
            thread = threading.Thread(
                target=context.run, args=(self._execute, scope, arguments), name=f"ramet-{self.name}", daemon=True
            )
            thread.start()
            return ProgramState(scope, is_observer=True)
        error = self._execute(scope, arguments)
        if error is not None and (options.on_error == "raise" or not isinstance(error, Exception)):
            raise error
        return ProgramState(scope)

    def stream(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the body in a thread of its own and return the state at once, to read with `text_iter`.

        Takes the arguments of `run` apart from `stream`. What the body raises is raised by reads of the state.
        """
        own, options = split_arguments(self.name, self._signature, kwargs, "stream")
        return self._run(args, own, replace(options, stream=True))

    def run_batch(
        self,
        items: Iterable[Item],
        *,
        max_concurrency: int = 64,
        progress_bar: bool = False,
        **options: Any,
    ) -> list[ProgramState]:
        """Run the program once per item and wait for all of it.

        Args:
            items: per run, a dict of the body's arguments or a tuple of them.
            max_concurrency: how many items run at a time.
            progress_bar: show progress on the standard error stream.
            options: as for `run`, apart from `stream` and `on_error`.

        Returns:
            One state per item, in order. An item that failed is a state like the others: its `error()` tells, and
            reading from it raises.

        Raises:
            InvalidProgramError: the items or options are not of the right form; nothing has run then.
        """
        own, run_options = split_arguments(self.name, self._signature, options, "run_batch")
        if own:
            raise InvalidProgramError(
                f"run_batch takes arguments of {self.name} from the items, or from bind: {sorted(own)}"
            )
        checked = [_checked_item(idx, item) for idx, item in enumerate(_listed(items))]
        batch_options = BatchOptions(max_concurrency=max_concurrency, has_progress=progress_bar)
        if not checked:
            return []
        run_options = replace(run_options, backend=_backend_of(run_options))
        return run_batch(
            [self._batch_item(args, kwargs, run_options) for args, kwargs in checked], batch_options, name=self.name
        )

    def trace(self, *args: Any, **kwargs: Any) -> ProgramGraph:
        """Capture the graph of calls ahead of a run: run the body once, with placeholders for what only a run can know.

        The only way to have the body run without being run: nothing else calls it with values that are not meant. No
        model is used. Arguments that are not given, and have no default, are placeholders too. Where the program reads
        a value to decide what to do, the capture ends, and the graph says so.

        Takes the arguments of `run`; of its options `backend` says whose template and tokenizer to use (that which was
        set, if any), and the sampling defaults are shown with the calls.

        Raises:
            InvalidProgramError: arguments that fit neither the body nor the options.
            InvalidSamplingParamsError: a sampling default is out of range.
        """
        own, options = split_arguments(self.name, self._signature, kwargs)
        taken = list(self._signature.parameters)[1 : 1 + len(args)]
        bound = {name: value for name, value in self._bound.items() if name not in taken}
        backend = default_backend_if_set() if options.backend is None else as_backend(options.backend)
        return capture_program(
            self.name,
            self._body,
            self._signature,
            args,
            {**bound, **own},
            backend=backend,
            sampling=options.sampling,
        )

    def _batch_item(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: RunOptions) -> BatchItem:
        """A scope for one item and what to call to run it. Bad arguments are the item's own failure."""
        scope = self._new_scope(options)

        def execute() -> BaseException | None:
            try:
                arguments = self._arguments(args, kwargs)
            except InvalidProgramError as error:
                scope.run.end_body(error)
                return error
            return self._execute(scope, arguments)

        return scope, execute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Inside another program, `f(s, ...)` runs the body on the state `s` and returns what the body returns.

        Otherwise the same as `run`.
        """
        if args and isinstance(args[0], ProgramState):
            return self._body(args[0], *args[1:], **{**self._bound, **kwargs})
        return self.run(*args, **kwargs)

    def _new_scope(self, options: RunOptions) -> Scope:
        return Scope(RunContext(self.name, _backend_of(options), options.sampling))

    def _arguments(self, args: tuple[Any, ...], own: Mapping[str, Any]) -> inspect.BoundArguments:
        """The body's arguments after the state."""
        taken = list(self._signature.parameters)[1 : 1 + len(args)]
        bound = {name: value for name, value in self._bound.items() if name not in taken}
        try:
            return self._signature.bind(None, *args, **{**bound, **own})
        except TypeError as error:
            raise InvalidProgramError(
                f"wrong arguments for {self.name}: {error}; it takes {_parameter_names(self._signature)}"
            ) from None

    def _execute(self, scope: Scope, arguments: inspect.BoundArguments) -> BaseException | None:
        """Run the body; what it raised. Calls that are still running then are cancelled."""
        error: BaseException | None = None
        try:
            result = self._body(ProgramState(scope), *arguments.args[1:], **arguments.kwargs)
            if isinstance(result, Expression):
                raise InvalidProgramError(
                    f"{self.name} returned an expression, which does nothing: append it to the state with +="
                )
            scope.return_value = result
        except BaseException as raised:
            error = raised
            scope.cancel(raised_message(self.name, raised), raised)
        scope.run.end_body(error)
        return error

    def __repr__(self) -> str:
        return f"<Program {self.name}{self._signature}>"


@overload
def function(body: Body) -> Program: ...


@overload
def function(body: None = None) -> Callable[[Body], Program]: ...


def function(body: Body | None = None) -> Program | Callable[[Body], Program]:
    """Decorator, with or without parentheses, that makes a Program of a function whose first parameter is the state.

    Raises:
        InvalidProgramError: the function takes no state, or is a coroutine or generator function.
    """
    return Program if body is None else Program(body)


def _backend_of(options: RunOptions) -> Backend:
    return get_default_backend() if options.backend is None else as_backend(options.backend)


def _checked_signature(body: Body) -> inspect.Signature:
    if inspect.iscoroutinefunction(body) or inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise InvalidProgramError(
            f"{body.__name__} is a coroutine or generator function; a program is a plain function"
        )
    signature = inspect.signature(body)
    parameters = list(signature.parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in positional:
        raise InvalidProgramError(
            f"{body.__name__}{signature} takes no state: its first parameter must be one, such as s"
        )
    return signature


def _parameter_names(signature: inspect.Signature) -> str:
    return ", ".join(list(signature.parameters)[1:]) or "no arguments"


def _listed(items: Iterable[Item]) -> list[Item]:
    if isinstance(items, Mapping | str) or not isinstance(items, Iterable):
        raise InvalidProgramError(f"run_batch takes a list of dicts or tuples, one per run, not {type(items).__name__}")
    return list(items)


def _checked_item(idx: int, item: Item) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, tuple):
        return item, {}
    raise InvalidProgramError(
        f"item {idx} of run_batch is {item!r}; give a dict of the program's arguments or a tuple of them, "
        "such as {'question': ...}"
    )
