"""RunContext: what a program's state and all its forks share during one run."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from ..sampling_params import SamplingParams
from .backend import Backend, ProgramEnded, ProgramHint, ProgramRef
from .callbacks import Callback, Callbacks, Forget, nothing_to_forget
from .calls import Call, CallGraph, Failure
from .capture.placeholder import CURRENT_CAPTURE
from .errors import ProgramError, ReadTimeoutError, raise_interrupt, raised_message
from .logprob_arguments import PROMPT_START, sampling_fields
from .params_cache import params_of

if TYPE_CHECKING:
    from .trace.program_trace import ProgramTrace

logger = logging.getLogger(__name__)

DEFAULT_SAMPLING: Mapping[str, Any] = {"max_tokens": 128}


@runtime_checkable
class WatchesRuns(Protocol):
    """A backend that wants to know of every run on it."""

    def run_began(self, run: RunContext) -> None:
        """The body of a run is about to begin, or could not. Does not raise; what it takes is no part of the run."""
        ...


@cache
def _watches_runs(backend_type: type) -> bool:
    """Asked once for each class: comparing with a protocol takes some 10 us."""
    return issubclass(backend_type, WatchesRuns)


class RunContext:
    """One run of a program: its backend, sampling defaults, graph of calls, and whether the body has ended.

    The backend is told once when the run is over: when the body has ended and no call is left, or when nobody has a
    state of it any more.

    Attributes:
        arguments: what the body was called with, after the state.
        start_time: when the body began, in seconds since 1970; before that, when the run was made.
        started_at, body_ended_at: the same, and the end of the body, on the monotonic clock.
        restored_trace: of a run that was read from a journal.
    """

    def __init__(
        self,
        program_name: str,
        backend: Backend,
        sampling: Mapping[str, Any],
        on_call: Callable[[Call], None] | None = None,
    ) -> None:
        """`sampling` holds SamplingParams fields that calls inherit unless they set their own. `on_call` is told of
        every gen and select when the program asks for it; it must not block or raise.

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
        self.arguments: Mapping[str, object] = {}
        self.start_time = time.time()
        self.started_at = time.monotonic()
        self.body_ended_at: float | None = None
        self._is_announced = False
        self.restored_trace: ProgramTrace | None = None
        self._sampling = {**DEFAULT_SAMPLING, **sampling}
        check_sampling(sampling)
        self._on_call = on_call
        self._lock = threading.Lock()
        self._num_open = 1  # the body, and every branch that has something to do
        self._end = weakref.finalize(self, _tell, backend, ProgramEnded(self.run_id))
        self._end.atexit = False
        self._body_over = threading.Event()
        self._body_failure: Failure | None = None
        self._cancellation: Failure | None = None
        self._on_body_over = Callbacks()

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

    def announce(self, call: Call) -> None:
        """The program asks for a call."""
        if self._on_call is not None:
            self._on_call(call)

    def sampling_params(self, options: Mapping[str, Any], branch: tuple[int, ...] = ()) -> SamplingParams:
        """The run's defaults with a call's own options on top. A seed among the defaults is another one in each branch,
        always the same one there, so that branches of a fork differ as they do without.

        Raises:
            InvalidSamplingParamsError: they contradict each other.
        """
        fields = {**self._sampling, **options}
        if branch and "seed" in self._sampling and "seed" not in options:
            fields["seed"] = _branch_seed(self._sampling["seed"], branch)
        return params_of(sampling_fields(fields))

    def prompt_logprobs_start(self, options: Mapping[str, Any]) -> int:
        """The first token of a prompt whose logprob is wanted, where any are."""
        start: int = {**self._sampling, **options}.get(PROMPT_START, 0)
        return start

    def begin_body(self, arguments: Mapping[str, object]) -> None:
        """The body runs from now on, with these arguments after the state."""
        self.arguments = arguments
        self._announce()
        self.start_time = time.time()
        self.started_at = time.monotonic()

    def _announce(self) -> None:
        if not self._is_announced and _watches_runs(type(self.backend)):
            cast(WatchesRuns, self.backend).run_began(self)
        self._is_announced = True

    def end_body(self, error: BaseException | None) -> None:
        """The body has returned, or raised `error`: observers need not expect more to be added."""
        self._announce()
        message = "" if error is None else raised_message(self.program_name, error)
        self.end_without_body(None if error is None else Failure(message, error, ProgramError))

    def end_without_body(self, failure: Failure | None) -> None:
        """Nothing more will be added: the body has ended, here or in another process, or is not waited for any more, or
        will never run. What is said first holds."""
        with self._lock:
            if self._body_over.is_set():
                return
            self._body_failure = failure
            self.body_ended_at = time.monotonic()
            self._body_over.set()
        self._on_body_over.call()
        self.end_work()

    def when_body_over(self, callback: Callback) -> Forget:
        """Call `callback` when the body ends; now if it has ended."""
        with self._lock:
            if not self._body_over.is_set():
                return self._on_body_over.add(callback)
        callback()
        return nothing_to_forget

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

    @property
    def raised(self) -> BaseException | None:
        """What the body raised."""
        failure = self._body_failure
        return None if failure is None else failure.cause or failure.to_error()

    def body_error(self) -> ProgramError | None:
        """What the body raised, as the cause of a ProgramError; None while it runs or if it returned."""
        failure = self._body_failure
        return None if failure is None else failure.to_error()


def _branch_seed(seed: int, branch: tuple[int, ...]) -> int:
    digest = hashlib.blake2b(repr((seed, branch)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # seeds have 63 bits


def check_sampling(sampling: Mapping[str, Any]) -> None:
    """
    Raises:
        InvalidSamplingParamsError: a sampling default of a run is out of range.
    """
    params_of(sampling_fields({**DEFAULT_SAMPLING, **sampling}))


def _tell(backend: Backend, hint: ProgramHint) -> None:
    """A hint is advice: where it cannot be given, the program goes on."""
    try:
        backend.hint(hint)
    except BaseException as error:
        raise_interrupt(error)
        logger.exception("The backend %r did not take the hint %r", backend, hint)
