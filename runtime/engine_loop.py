"""EngineLoop: the one thread that owns an engine, and the handles other threads hold.

any thread                      engine thread
----------                      -------------
submit(request) --- inbox --->  engine.add_request
                                engine.step  -> chunks
handle.stream()  <-- chunks --  handle of that request
handle.abort()  --- inbox --->  engine.abort_request
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from .engine import Engine
from .errors import EngineStoppedError
from .outputs import FinishReason, OutputChunk, RequestMetrics, RequestOutput
from .request import Request

logger = logging.getLogger(__name__)
T = TypeVar("T")
_PATIENCE_SECONDS = 2.0
"""For the step that runs at a shutdown, where it can be cut short."""


@dataclass(frozen=True, slots=True)
class EnginePulse:
    """Whether an engine is alive.

    Attributes:
        is_alive: its thread runs, and takes requests.
        busy_seconds: how long the step, or the message, has been going on that it is at; 0 between two, and while there
            is nothing to do.
    """

    is_alive: bool
    busy_seconds: float


class RequestHandle:
    """A submitted request as its owner sees it. Every method may be called from any thread.

    Chunks are kept, so a stream started late or a second time begins at the first chunk.

    Attributes:
        owner: kept alive as long as the handle is, for an engine may end with its last user.
    """

    def __init__(self, request: Request, abort: Callable[[str], None], engine_thread: threading.Thread) -> None:
        self.request = request
        self._engine_thread = engine_thread
        self.owner: object | None = None
        self._abort = abort
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)  # a chunk
        self._ended = threading.Condition(self._lock)  # so that who waits for the end is not woken by every chunk
        self._chunks: list[OutputChunk] = []
        self._output: RequestOutput | None = None
        self._callbacks: list[Callable[[RequestHandle], None]] = []
        self._followers: list[Callable[[OutputChunk], None]] = []

    @property
    def is_done(self) -> bool:
        return self._output is not None

    def result(self, timeout: float | None = None) -> RequestOutput:
        """Wait for the end and return the output.

        Raises:
            TimeoutError: it did not end in `timeout` seconds; it goes on running.
            RequestFailedError: it failed or was aborted.
        """
        output = self.wait(timeout)
        if output.error is not None:
            raise output.error
        return output

    def wait(self, timeout: float | None = None) -> RequestOutput:
        """Like `result`, but a failure is returned inside the output."""
        self._check_may_wait()
        with self._ended:
            if not self._ended.wait_for(lambda: self._output is not None, timeout):
                raise TimeoutError(f"request {self.request.request_id} did not finish within {timeout} s")
            assert self._output is not None
            return self._output

    def stream(self) -> Iterator[OutputChunk]:
        """Every chunk from the first on, as they come.

        Raises:
            RequestFailedError: after the last chunk, if the request failed or was aborted.
        """
        for idx in itertools.count():
            self._check_may_wait()
            with self._arrived:
                self._arrived.wait_for(lambda idx=idx: len(self._chunks) > idx)  # type: ignore[misc]
                chunk = self._chunks[idx]
            if chunk.output is not None and chunk.output.error is not None:
                raise chunk.output.error
            yield chunk
            if chunk.output is not None:
                return

    def _check_may_wait(self) -> None:
        if threading.current_thread() is self._engine_thread and not self.is_done:
            raise RuntimeError(
                f"a callback runs on the engine's thread and cannot wait there for request {self.request.request_id}: "
                "add a callback to it, or wait in a thread of your own"
            )

    def abort(self) -> None:
        """Cancel it. Its blocks are free after the engine's next step; `result` then raises RequestAbortedError."""
        if not self.is_done:
            self._abort(self.request.request_id)

    def add_done_callback(self, callback: Callable[[RequestHandle], None]) -> None:
        """Call it when the request has ended (at once if it has). It runs on the engine's thread: keep it short."""
        with self._lock:
            if self._output is None:
                self._callbacks.append(callback)
                return
        callback(self)

    def add_chunk_callback(self, callback: Callable[[OutputChunk], None]) -> None:
        """Call it with every chunk from the first on, in order: with those there are at once, with later ones on the
        engine's thread. It must be short and must not use this handle."""
        with self._lock:
            for chunk in self._chunks:
                _call_safely(callback, chunk)
            self._followers.append(callback)

    def publish(self, chunk: OutputChunk) -> None:
        """Engine side: append a chunk; the last one carries the output."""
        with self._lock:
            self._chunks.append(chunk)
            self._output = chunk.output
            for follower in self._followers:
                _call_safely(follower, chunk)
            callbacks = self._callbacks if chunk.output is not None else []
            self._arrived.notify_all()
            if chunk.output is not None:
                self._ended.notify_all()
        for callback in callbacks:
            _call_safely(callback, self)


class EngineLoop:
    """Runs an engine on a thread of its own until `shutdown`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wakeup = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._handles: dict[str, RequestHandle] = {}
        self._is_stopping = False
        self._is_cut_short = False
        self._busy_since: float | None = None
        self._process_id = os.getpid()
        self._thread = threading.Thread(target=self._run, name="ramet-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> RequestHandle:
        """Queue a request.

        Raises:
            InvalidRequestError: refused; nothing was queued.
            EngineStoppedError: the loop was shut down.
        """
        return self.submit_many([request])[0]

    def submit_many(self, requests: list[Request]) -> list[RequestHandle]:
        """Queue requests so that the same step takes them in. All are refused if one is."""
        requests = [self._engine.prepare(request) for request in requests]
        handles = [RequestHandle(request, self._post_abort, self._thread) for request in requests]
        self._post(lambda: self._take_in(handles))
        return handles

    def call(self, function: Callable[[Engine], T]) -> T:
        """Run a function on the engine's thread between two steps and return its result."""
        if threading.current_thread() is self._thread:  # from a callback: this is between two steps
            return function(self._engine)
        return self.ask(function).result()

    def ask(self, function: Callable[[Engine], T]) -> Future[T]:
        """Have a short function run on the engine's thread between two steps. Returns at once.

        Raises:
            EngineStoppedError: the loop was shut down.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(self._engine))
            except BaseException as error:
                future.set_exception(error)

        self._post(run)
        return future

    def pulse(self) -> EnginePulse:
        """Waits for nothing, whatever the engine does. From any thread."""
        busy_since = self._busy_since
        return EnginePulse(
            is_alive=self._thread.is_alive() and not self._is_stopping,
            busy_seconds=0.0 if busy_since is None else time.monotonic() - busy_since,
        )

    def tell(self, message: Callable[[Engine], None]) -> None:
        """Run a short function on the engine's thread, after what was submitted before. Returns at once; nothing
        happens if the loop was shut down."""
        try:
            self._post(lambda: message(self._engine))
        except EngineStoppedError:
            return

    def shutdown(self, cut_short: Callable[[], None] | None = None) -> None:
        """Stop the thread. Requests still running end with EngineStoppedError. Idempotent.

        Args:
            cut_short: makes a step fail that runs for longer than a moment; None waits for its end.

        Does nothing in a forked process: the thread, and whatever locks it held, are the parent's.
        """
        if os.getpid() != self._process_id:
            return
        with self._wakeup:
            self._is_stopping = True
            self._wakeup.notify_all()
        if threading.current_thread() is self._thread:
            return
        if cut_short is not None:
            self._thread.join(_PATIENCE_SECONDS)
            if self._thread.is_alive():
                self._is_cut_short = True
                cut_short()
        self._thread.join()

    def _post(self, message: Callable[[], None]) -> None:
        if os.getpid() != self._process_id:
            raise EngineStoppedError(
                "the engine runs in the parent process; create an LLM in each process that needs one"
            )
        with self._wakeup:
            if self._is_stopping:
                raise EngineStoppedError("the engine was shut down; create a new LLM")
            self._inbox.append(message)
            self._wakeup.notify_all()

    def _post_abort(self, request_id: str) -> None:
        try:
            self._post(lambda: self._engine.abort_request(request_id))
        except EngineStoppedError:  # it ended with the engine
            return

    def _take_in(self, handles: list[RequestHandle]) -> None:
        for handle in handles:
            try:
                self._engine.add_request(handle.request)
            except Exception as error:
                handle.publish(_failed(handle.request, error))
            else:
                self._handles[handle.request.request_id] = handle

    def _run(self) -> None:
        try:
            while self._take_messages():
                if self._engine.has_work:
                    chunks = self._engine.step()
                    if self._is_cut_short:  # what has failed did so for that reason, and `_end_all` says so
                        chunks = [chunk for chunk in chunks if chunk.output is None or chunk.output.error is None]
                    self._publish(chunks)
        except BaseException as error:
            logger.exception("The engine broke an invariant and stops")
            with self._wakeup:
                self._is_stopping = True
            return self._end_all(error)
        return self._end_all(EngineStoppedError("the engine was shut down while this request ran"))

    def _take_messages(self) -> bool:
        """Wait for something to do and carry out what was posted; False once the loop is to stop.

        A method of its own so that the waiting thread holds on to no message, and through it to no request. After one
        that raises the others stay in the inbox: there are requests among them that somebody waits for.
        """
        self._busy_since = None
        with self._wakeup:
            self._wakeup.wait_for(lambda: self._inbox or self._is_stopping or self._engine.has_work)
            self._busy_since = time.monotonic()
            num_messages = len(self._inbox)
            is_stopping = self._is_stopping
        for _ in range(num_messages):
            self._inbox.popleft()()
        return not is_stopping

    def _publish(self, chunks: list[OutputChunk]) -> None:
        for chunk in chunks:
            handle = self._handles[chunk.request_id]
            if chunk.output is not None:
                del self._handles[chunk.request_id]
            handle.publish(chunk)

    def _end_all(self, cause: BaseException) -> None:
        while self._inbox:  # left behind one that raised; they find an engine that is not closed yet
            _run_safely(self._inbox.popleft())
        try:
            self._engine.close()
        finally:  # whatever happens, nobody is left waiting
            handles, self._handles = self._handles, {}
            for handle in handles.values():
                error = EngineStoppedError(f"request {handle.request.request_id} ended with the engine: {cause!r}")
                error.__cause__ = cause
                handle.publish(_failed(handle.request, error))
            self._busy_since = None


def _run_safely(message: Callable[[], None]) -> None:
    try:
        message()
    except BaseException:
        logger.exception("A message to an engine that ends raised")


def _call_safely(callback: Callable[[T], None], argument: T) -> None:
    """A callback that raises, or calls sys.exit, must not stop the engine."""
    try:
        callback(argument)
    except BaseException:
        logger.exception("The callback %r of a request raised", callback)


def _failed(request: Request, error: Exception) -> OutputChunk:
    output = RequestOutput(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=list(request.prompt_token_ids),
        prompt_logprobs=None,
        outputs=[],
        finished=True,
        metrics=RequestMetrics(arrival_time=request.arrival_time),
        num_cached_tokens=0,
        error=error,
    )
    return OutputChunk(request.request_id, 0, "", (), finish_reason=FinishReason.ERROR, output=output)
