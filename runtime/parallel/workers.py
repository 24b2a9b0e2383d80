"""WorkerPool: the other ranks' processes, as rank 0 sees them.

    rank 0   engine --STEP, RUN--> channel of rank r ----> process of rank r
             listener thread r <-- READY, FAILED, ... ----'        each listener notices its process's end at once

They are started with a command, not by multiprocessing, which would run the user's script again. Each is the leader of
a session of its own, so that Ctrl-C reaches rank 0 alone, and ends by itself when its channel or its parent is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..errors import InvalidConfigError, TensorParallelError
from ..models.errors import ModelLoadError
from ..runner_spec import RunnerUnavailableError
from .channel import Channel, ChannelClosedError, Kind
from .messages import Failure

MODULE = "ramet.runtime.parallel.worker"
_CLOSE_SECONDS = 3.0
_NOTICE_SECONDS = 5.0
"""Until the end of a process is known after a message could not be sent, or a collective failed."""
_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error for error in (InvalidConfigError, ModelLoadError, RunnerUnavailableError, MemoryError)
}


@dataclass(frozen=True, slots=True)
class Worker:
    """A rank in a process of its own."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: Channel


class WorkerPool:
    """Starts ranks 1 .. N - 1, listens to them and ends them.

    The first failure is kept: from then on the processes are dead, and `check` raises it.

    Args:
        tasks: what to tell each of them to load, from rank 1 on.

    Attributes:
        on_step_failure: called on the listener's thread with a rank and what a step of it raised; the rank runs nothing
            until it is asked to settle.
        on_failure: called once when the pool has failed.
    """

    def __init__(self, tasks: Sequence[bytes]) -> None:
        self.on_step_failure: Callable[[int, Failure], None] = lambda rank, failure: None
        self.on_failure: Callable[[], None] = lambda: None
        self._owner_id = os.getpid()
        self._changed = threading.Condition()
        self._answers: dict[int, tuple[Kind, bytes]] = {}
        self._failure: tuple[type[Exception], str] | None = None
        self._is_closing = False
        self._workers: list[Worker] = []
        self._listeners: list[threading.Thread] = []
        processes: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _kill_all, processes, self._owner_id)  # at exit, whatever else was forgotten
        try:
            for rank, task in enumerate(tasks, start=1):
                worker = _start(rank)
                self._workers.append(worker)
                processes.append(worker.process)
                self._listen_to(worker)
                try:
                    worker.channel.send(Kind.LOAD, task)
                except ChannelClosedError as error:
                    self.explain(f"rank {rank} of the model takes no messages: {error}")
        except BaseException:
            self.close()
            raise

    @property
    def is_owner(self) -> bool:
        """Not so in a forked process, whose parent the ranks belong to."""
        return os.getpid() == self._owner_id

    @property
    def has_ended(self) -> bool:
        """Nothing more will come: it has failed or is being closed."""
        return self._is_closing or self._failure is not None

    def check(self) -> None:
        """Raise the failure, if there is one: TensorParallelError, also when the pool is closed, or while loading what
        a rank raised."""
        if self._failure is not None:
            kind, message = self._failure
            raise kind(message)
        if self._is_closing:
            raise TensorParallelError("the processes of the model were ended with its engine: create a new LLM")

    def fail(self, message: str, kind: type[Exception] = TensorParallelError) -> None:
        """End the ranks, for this reason unless there is one already. The processes are dead when it returns."""
        with self._changed:
            is_first = self._failure is None and not self._is_closing
            if is_first:
                self._failure = kind, message
                self._changed.notify_all()
        for worker in self._workers:
            worker.process.kill()
        if is_first:
            self.on_failure()

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """To all. Raises as `check` if one is gone."""
        with self._changed:
            self._answers.clear()
        for worker in self._workers:
            try:
                worker.channel.send(kind, payload)
            except ChannelClosedError as error:
                self.explain(f"rank {worker.rank} takes no messages: {error}")

    def answers(self, kind: Kind, timeout: float | None = None) -> dict[int, bytes]:
        """What ranks have answered since the last message to all, by rank, as soon as all have or the time is over.
        Raises as `check`."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_ended or len(self._found(kind)) == len(self._workers), timeout)
            self.check()
            return self._found(kind)

    def silent_ranks(self, answers: dict[int, bytes]) -> list[int]:
        """Those that have not answered."""
        return [worker.rank for worker in self._workers if worker.rank not in answers]

    def explain(self, message: str) -> None:
        """Raise why a rank is gone, which is known in a moment, or else fail with this message and raise that."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_ended, _NOTICE_SECONDS)
        self.fail(message)
        self.check()
        raise TensorParallelError(message)

    def close(self, patience: float = _CLOSE_SECONDS) -> None:
        """End the processes: asked to, and after `patience` seconds killed. Idempotent."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        for worker in self._workers:
            worker.channel.close()
        deadline = time.monotonic() + patience
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        for listener in self._listeners:
            if listener is not threading.current_thread():
                listener.join()

    def _found(self, kind: Kind) -> dict[int, bytes]:
        return {rank: payload for rank, (found, payload) in self._answers.items() if found is kind}

    def _listen_to(self, worker: Worker) -> None:
        listener = threading.Thread(target=self._listen, args=(worker,), name=f"ramet-rank-{worker.rank}", daemon=True)
        self._listeners.append(listener)
        listener.start()

    def _listen(self, worker: Worker) -> None:
        try:
            while True:
                kind, payload = worker.channel.receive()
                if kind is not Kind.FAILED:
                    with self._changed:
                        self._answers[worker.rank] = kind, payload
                        self._changed.notify_all()
                    continue
                failure = Failure.unpack(payload)
                if failure.is_of_a_step:
                    self.on_step_failure(worker.rank, failure)
                else:
                    kind_raised = _ERRORS.get(failure.error_name, TensorParallelError)
                    self.fail(f"rank {worker.rank} of the model: {failure.message}", kind_raised)
        except ChannelClosedError:
            if not self.has_ended:
                self.fail(f"rank {worker.rank} of the model {_how_it_ended(worker.process)}")


def _start(rank: int) -> Worker:
    if not sys.executable:
        raise InvalidConfigError("tensor_parallel_size > 1 starts processes, and this Python does not know its program")
    try:
        own, others = socket.socketpair()
        with others:
            return Worker(rank, _start_process(others.fileno(), rank), Channel(own))
    except OSError as error:
        raise TensorParallelError(f"rank {rank} of the model cannot be started: {error}") from error


def _start_process(descriptor: int, rank: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # The interpreter's path, but not what `-m` would put before it.
        [sys.executable, "-P", "-m", MODULE, str(descriptor), str(os.getpid()), str(rank)],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what libraries print there is none of the user's output
        cwd=None if _has_directory() else "/",  # Intel's MKL cannot start in none
        env=os.environ | {"PYTHONPATH": os.pathsep.join(_import_path())},
        pass_fds=[descriptor],
        start_new_session=True,
    )


def _has_directory() -> bool:
    """Whether this process's working directory is still there."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _import_path() -> list[str]:
    """The directories that imports look into. Imports pass over whatever else `sys.path` holds, so no one has to mind
    it: paths that are no text, and those that no system call takes."""
    found = []
    for entry in sys.path:
        with suppress(OSError, ValueError):  # the working directory is gone, or the name is none
            directory = os.getcwd() if entry == "" else entry
            if isinstance(directory, str) and b"\0" not in os.fsencode(directory):
                found.append(directory)
    return found


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(_NOTICE_SECONDS)
    except subprocess.TimeoutExpired:
        return "takes no more messages"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code} (what it wrote to the error output may say why)"


def _kill_all(processes: list[subprocess.Popen[bytes]], owner_id: int) -> None:
    if os.getpid() == owner_id:
        for process in processes:
            process.kill()
