"""RunContext: what a program's state and all its forks share during one run."""

from __future__ import annotations

import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ..sampling_params import SamplingParams
from .backend import Backend, ProgramEnded, ProgramHint, ProgramRef
from .calls import CallGraph, Failure
from .errors import ProgramError, ReadTimeoutError, raised_message
from .placeholder import CURRENT_CAPTURE

logger = logging.getLogger(__name__)

DEFAULT_SAMPLING: Mapping[str, Any] = {"max_tokens": 128}


class RunContext:
    """One run of a program: its backend, sampling defaults, graph of calls, and whether the body has ended.

    The backend is told once when the run is over: when the body has ended and no call is left, or when nobody has a
    state of it any more.
    """

    def __init__(self, program_name: str, backend: Backend, sampling: Mapping[str, Any]) -> None:
        """`sampling` holds SamplingParams fields that calls inherit unless they set their own.

        Raises:
            InvalidSamplingParamsError: one of them is out of range.
        """
        capture = CURRENT_CAPTURE.get()
        if capture is not None:
            capture.stop(f"the program runs another one, {program_name!r}")
        self.program_name = program_name
        self.run_id = uuid.uuid4().hex
        self.backend = backend
        self.graph = CallGraph()
        self._sampling = {**DEFAULT_SAMPLING, **sampling}
        self.sampling_params({})
        self._lock = threading.Lock()
        self._num_open = 1  # the body, and every branch that has something to do
        self._end = weakref.finalize(self, _tell, backend, ProgramEnded(self.run_id))
        self._end.atexit = False
        self._body_over = threading.Event()
        self._body_error: BaseException | None = None
        self._cancellation: Failure | None = None
        self._on_body_over: list[Callable[[], None]] = []

    def program_ref(self, branch: tuple[int, ...]) -> ProgramRef | None:
        """What a call of this branch says of where it comes from; None once the backend knows that the run is over."""
        return ProgramRef(self.run_id, self.program_name, branch) if self._end.alive else None

    # What the backend is told beside calls

    def hint(self, hint: ProgramHint) -> None:
        """Tell the backend, unless it knows that the run is over."""
        if self._end.alive:
            _tell(self.backend, hint)

    def begin_work(self) -> None:
        """The body or a branch has something to do from now on."""
        with self._lock:
            self._num_open += 1

    def end_work(self) -> None:
        """It has nothing more to do for now. Once that is so for the body and all branches, the run is over, and the
        backend is told, once: what is appended to a state after that is no part of it any more."""
        with self._lock:
            self._num_open -= 1
            is_over = self._num_open == 0
        if is_over:
            self._end()

    def sampling_params(self, options: Mapping[str, Any]) -> SamplingParams:
        """The run's defaults with a call's own options on top.

        Raises:
            InvalidSamplingParamsError: they contradict each other.
        """
        return SamplingParams(**{**self._sampling, **options})

    def end_body(self, error: BaseException | None) -> None:
        """The body has returned, or raised `error`: observers need not expect more to be added."""
        with self._lock:
            is_first = not self._body_over.is_set()
            self._body_error = error
            self._body_over.set()
            callbacks = list(self._on_body_over)
            self._on_body_over.clear()
        for callback in callbacks:
            callback()
        if is_first:
            self.end_work()

    def when_body_over(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the body ends; not at all if it has ended."""
        with self._lock:
            if not self._body_over.is_set():
                self._on_body_over.append(callback)

    @property
    def is_body_over(self) -> bool:
        return self._body_over.is_set()

    def wait_body_over(self, timeout: float | None = None) -> None:
        """Block until the body has ended.

        Raises:
            ReadTimeoutError: it takes longer than `timeout` seconds.
        """
        if not self._body_over.wait(timeout):
            raise ReadTimeoutError(f"the program {self.program_name!r} is still running after {timeout} s")

    def cancel(self, failure: Failure) -> None:
        """Calls that have not gone to the backend yet will get this failure, unless the body is over."""
        with self._lock:
            if not self._body_over.is_set():
                self._cancellation = self._cancellation or failure

    @property
    def cancellation(self) -> Failure | None:
        return self._cancellation

    def body_error(self) -> ProgramError | None:
        """What the body raised, as the cause of a ProgramError; None while it runs or if it returned."""
        cause = self._body_error
        if cause is None:
            return None
        error = ProgramError(raised_message(self.program_name, cause))
        error.__cause__ = cause
        return error


def _tell(backend: Backend, hint: ProgramHint) -> None:
    """A hint is advice: where it cannot be given, the program goes on."""
    try:
        backend.hint(hint)
    except Exception:
        logger.exception("The backend %r did not take the hint %r", backend, hint)
