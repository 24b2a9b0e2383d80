"""Program: a Python function over a state, made with @function, that can be run on any backend."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Literal, overload

from .appendable import AppendableState
from .appending_state import AppendingState
from .async_state import AsyncProgramState
from .backend import Backend
from .batch import BatchRun, run_batch
from .batch_items import Item, checked_items
from .batch_options import BatchOptions, NumThreads, OnItemError, checked_path, resolve_concurrency
from .batch_results import BatchResults
from .batch_states import BatchStates
from .calls import Call
from .capture.program_graph import ProgramGraph
from .capture.tracer import cache_prefix, capture_program
from .default_backend import as_backend, default_backend_if_set, get_default_backend
from .errors import InvalidProgramError
from .program_batch import ProgramBatch
from .program_body import Body, ProgramBody
from .run_context import RunContext, check_sampling
from .run_events import EventFeed, RunEnded, RunEvent
from .run_options import RunOptions, split_arguments
from .scope import Scope
from .state import ProgramState

if TYPE_CHECKING:
    from .default_backend import BackendLike


class Program:
    """A program. Its body is an ordinary function, or a coroutine function, whose first parameter is the state.

    The body never runs except with the arguments of a run. Each way to run one takes both kinds.
    """

    def __init__(self, body: Body, bound: Mapping[str, Any] | None = None) -> None:
        """`bound` holds arguments given ahead.

        Raises:
            InvalidProgramError: the body takes no state, or is a generator function.
        """
        self._body = ProgramBody(body)
        self.name: str = self._body.name
        self._bound = dict(bound or {})
        update_wrapper(self, body)

    @property
    def is_async(self) -> bool:
        """Whether the body is a coroutine function."""
        return self._body.is_async

    def bind(self, **arguments: Any) -> Program:
        """The same program with some arguments given ahead; `run` may still give others for them.

        Raises:
            InvalidProgramError: the program has no such parameter.
        """
        for name in arguments:
            if name not in self._body.signature.parameters:
                raise InvalidProgramError(f"cannot bind {name!r}: {self.name} takes {self._body.parameter_names}")
        return Program(self._body.function, {**self._bound, **arguments})

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
        own, options = split_arguments(self.name, self._body.signature, kwargs)
        backend = default_backend_if_set() if options.backend is None else as_backend(options.backend)
        return capture_program(self._body, args, own, self._bound, backend=backend, sampling=options.sampling)

    def cache(self, backend: BackendLike | None = None) -> int:
        """Compute ahead what all runs begin with, and return the number of its tokens. Blocks. Hardly ever needed: what
        runs share is computed once in any case.

        Captures the program, as `trace` does.
        """
        used = _backend_of(RunOptions(backend=backend))
        return cache_prefix(capture_program(self._body, (), {}, self._bound, backend=used, sampling={}), used)

    # One run

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the body in this thread and return its state. Values may still be on their way; reading them waits.

        A coroutine body runs in an event loop of its own. Keyword arguments the body does not declare are options:
        `backend` (a backend, an LLM or a model name), `on_error` ("raise" lets what the body raises through; "return"
        gives the state, whose reads raise it), `stream` (see `stream`), and the fields of SamplingParams
        (`max_new_tokens` also works) as defaults for every gen, but for those that constrain a text.

        Raises:
            InvalidProgramError: arguments that fit neither the body nor the options, or the body is a coroutine and an
                event loop runs in this thread.
            InvalidSamplingParamsError: a sampling default is out of range.
            Exception: whatever the body raises; calls that still run are then cancelled.
        """
        own, options = split_arguments(self.name, self._body.signature, kwargs)
        return self._run(args, own, options)

    def _run(self, args: tuple[Any, ...], own: Mapping[str, Any], options: RunOptions) -> ProgramState:
        arguments = self._arguments(args, own)
        if self.is_async and not options.stream:
            self._check_no_loop("arun")
        scope = self._new_scope(options)
        if options.stream:
            context = contextvars.copy_context()
            thread = threading.Thread(
                target=context.run, args=(self._body.execute, scope, arguments), name=f"ramet-{self.name}", daemon=True
            )
            thread.start()
            return ProgramState(scope, is_observer=True)
        return _finished(scope, self._body.execute(scope, arguments), options)

    def stream(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the body in a thread of its own and return the state at once, to read with `text_iter`.

        Takes the arguments of `run` apart from `stream`. What the body raises is raised by reads of the state.
        """
        own, options = split_arguments(self.name, self._body.signature, kwargs, "stream")
        return self._run(args, own, replace(options, stream=True))

    async def arun(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the program without blocking the event loop, and return its finished state: reading it never waits.

        A coroutine body runs in this task. A plain one runs in one of at most 48 threads that all programs share, and
        holds it only while it runs. Cancelling the task cancels the program. Takes the arguments of `run` apart from
        `stream`, and raises as it does. Without a backend, the first run loads the default model, which blocks.
        """
        own, options = split_arguments(self.name, self._body.signature, kwargs, "arun")
        arguments = self._arguments(args, own)
        scope = self._new_scope(options)
        return _finished(scope, await self._body.aexecute(scope, arguments), options)

    def astream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[RunEvent, None]:
        """`async for event in program.astream(...)`: run the program and yield what its calls give, as it comes.

        Yields CallStarted, TextPiece and CallEnded for every gen and select, at last RunEnded; then raises what the
        body raised, unless on_error="return". The program starts with the iteration. Leaving the iteration cancels it:
        at once with `contextlib.aclosing`, else when the generator is garbage.

        Takes the arguments of `arun` and raises as it does; bad arguments are reported here.
        """
        own, options = split_arguments(self.name, self._body.signature, kwargs, "astream")
        return self._events(self._arguments(args, own), options)

    async def _events(self, arguments: inspect.BoundArguments, options: RunOptions) -> AsyncGenerator[RunEvent, None]:
        feed = EventFeed()
        scope = self._new_scope(options, feed.watch)
        task = asyncio.create_task(self._body.aexecute(scope, arguments))
        task.add_done_callback(lambda _: feed.tell())
        is_over = False
        try:
            while not is_over:
                await feed.wait()
                is_over = task.done()
                for event in feed.take():
                    yield event
            error = task.result()
            yield RunEnded(ProgramState(scope), scope.return_value, ProgramState(scope).error())
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        _finished(scope, error, options)

    # Many runs

    @overload
    def run_batch(
        self,
        batch_kwargs: Iterable[Item],
        *,
        max_concurrency: int | None = None,
        progress_bar: bool = False,
        on_error: OnItemError = "return",
        max_failures: int | None = None,
        journal: str | os.PathLike[str] | None = None,
        retry_failed: bool = True,
        generator_style: Literal[False] = False,
        num_threads: NumThreads | None = None,
        **options: Any,
    ) -> BatchResults: ...

    @overload
    def run_batch(
        self,
        batch_kwargs: Iterable[Item],
        *,
        max_concurrency: int | None = None,
        progress_bar: bool = False,
        on_error: OnItemError = "return",
        max_failures: int | None = None,
        journal: str | os.PathLike[str] | None = None,
        retry_failed: bool = True,
        generator_style: Literal[True],
        num_threads: NumThreads | None = None,
        **options: Any,
    ) -> Iterator[ProgramState]: ...

    def run_batch(
        self,
        batch_kwargs: Iterable[Item],
        *,
        max_concurrency: int | None = None,
        progress_bar: bool = False,
        on_error: OnItemError = "return",
        max_failures: int | None = None,
        journal: str | os.PathLike[str] | None = None,
        retry_failed: bool = True,
        generator_style: bool = False,
        num_threads: NumThreads | None = None,
        **options: Any,
    ) -> BatchResults | Iterator[ProgramState]:
        """Run the program once per item and wait for all of it.

        Args:
            batch_kwargs: per item, a dict of the body's arguments or a tuple of them.
            max_concurrency: how many items are under way at a time: 64, unless given. At most 48 plain bodies run at a
                time; what they have asked for goes on when they have returned.
            progress_bar: show progress on the standard error stream.
            on_error: "raise" ends the batch at the first item that fails, whichever fails first.
            max_failures: end the batch when more items than this have failed.
            journal: path of a file that keeps every finished item. With a file that has some already, only the others
                run; states of all are returned. See docs/adr/0019.
            retry_failed: whether items that the journal has as failed run again.
            generator_style: return an iterator over the states, in order, instead. It starts the batch, and leaving it
                cancels the rest.
            num_threads: SGLang's name of max_concurrency; "auto" is the default.
            options: as for `run`, apart from `stream`.

        Returns:
            One state per item, in order: a list that also has a `summary`. An item that failed is a state like the
            others: its `error()` tells, and reading from it raises.

        Raises:
            InvalidProgramError: the items or options are not of the right form, or the journal is another program's or
                in use; nothing has run then. Or the body is a coroutine and an event loop runs in this thread.
            BatchError: the batch was ended because items failed; it has the results.
            OSError: the journal cannot be written.
        """
        if self.is_async:
            self._check_no_loop("arun_batch")
        concurrency = resolve_concurrency(max_concurrency, num_threads)
        batch_options = BatchOptions(concurrency, progress_bar, on_error, max_failures, retry_failed)
        batch = self._batch(batch_kwargs, batch_options, journal, options, "run_batch")
        return BatchStates(batch, self.name) if generator_style else run_batch(batch, self.name)

    async def arun_batch(
        self,
        batch_kwargs: Iterable[Item],
        *,
        max_concurrency: int | None = None,
        progress_bar: bool = False,
        on_error: OnItemError = "return",
        max_failures: int | None = None,
        journal: str | os.PathLike[str] | None = None,
        retry_failed: bool = True,
        **options: Any,
    ) -> BatchResults:
        """`await program.arun_batch(batch_kwargs, ...)`: as `run_batch`, without blocking the event loop.

        Cancelling the task cancels everything that runs.
        """
        concurrency = resolve_concurrency(max_concurrency, None)
        batch_options = BatchOptions(concurrency, progress_bar, on_error, max_failures, retry_failed)
        return await self._batch(batch_kwargs, batch_options, journal, options, "arun_batch").run()

    def _batch(
        self,
        batch_kwargs: Iterable[Item],
        batch_options: BatchOptions,
        journal: str | os.PathLike[str] | None,
        kwargs: Mapping[str, Any],
        method: Literal["run_batch", "arun_batch"],
    ) -> BatchRun:
        own, options = split_arguments(self.name, self._body.signature, kwargs, method)
        if own:
            raise InvalidProgramError(
                f"{method} takes arguments of {self.name} from the items, or from bind: {sorted(own)}"
            )
        path = checked_path(journal)
        calls = checked_items(batch_kwargs)
        check_sampling(options.sampling)  # all of it before a model is loaded
        if not calls:
            return BatchRun(self.name, [], batch_options)
        batch = ProgramBatch(self._body, self._bound, _backend_of(options), options.sampling, path)
        return batch.run_of(calls, batch_options)

    # Inside another program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Inside another program, `f(s, ...)` runs the body on the state `s` and returns what the body returns; of an
        async program, `await f(s, ...)` does, inside another async one.

        Otherwise the same as `run`.

        Raises:
            InvalidProgramError: an async program was called with the state of a plain one.
        """
        if not args or not isinstance(args[0], AppendableState):
            return self.run(*args, **kwargs)
        state = args[0]
        if isinstance(state, AsyncProgramState):
            state = state if self.is_async else state.for_plain_program()
        elif self.is_async:
            plain = "plain" if not isinstance(state, AppendingState) else "plain inner"
            raise InvalidProgramError(
                f"{self.name} is async and cannot be called inside a {plain} program: make that `async def` too and "
                f"write `await {self.name}(s, ...)`, or run {self.name} by itself with {self.name}.run(...)"
            )
        return self._body.function(state, *args[1:], **{**self._bound, **kwargs})

    def _check_no_loop(self, method: str) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise InvalidProgramError(
            f"{self.name} is async and an event loop is running in this thread: use `await {self.name}.{method}(...)`"
        )

    def _new_scope(self, options: RunOptions, on_call: Callable[[Call], None] | None = None) -> Scope:
        return Scope(RunContext(self.name, _backend_of(options), options.sampling, on_call))

    def _arguments(self, args: tuple[Any, ...], own: Mapping[str, Any]) -> inspect.BoundArguments:
        return self._body.arguments(args, own, self._bound)

    def __repr__(self) -> str:
        return f"<Program {self.name}{self._body.signature}>"


@overload
def function(func: Body, num_api_spec_tokens: int | None = None) -> Program: ...


@overload
def function(func: None = None, num_api_spec_tokens: int | None = None) -> Callable[[Body], Program]: ...


def function(func: Body | None = None, num_api_spec_tokens: int | None = None) -> Program | Callable[[Body], Program]:
    """Decorator, with or without parentheses, that makes a Program of a function whose first parameter is the state.

    `num_api_spec_tokens` lets SGLang generate ahead where every call costs its whole prompt again. It is taken and
    plays no part: a call here goes on from the cache, so there is nothing to save.

    Raises:
        InvalidProgramError: the function takes no state, or is a generator function.
    """
    return Program if func is None else Program(func)


def _finished(scope: Scope, error: BaseException | None, options: RunOptions) -> ProgramState:
    if error is not None and (options.on_error == "raise" or not isinstance(error, Exception)):
        raise error
    return ProgramState(scope)


def _backend_of(options: RunOptions) -> Backend:
    return get_default_backend() if options.backend is None else as_backend(options.backend)
