"""StepLauncher: runs a prepared step in place, or on a thread of its own so that the host goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from torch import Tensor

from .batch import Batch
from .runner import Runner
from .trace.recorder import TraceRecorder


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A step that was launched.

    Attributes:
        wait: returns its logits as soon as they are there, or raises what the step raised.
        recorders: of the traces that the step was entered in.
    """

    batch: Batch
    wait: Callable[[], Tensor]
    recorders: tuple[TraceRecorder, ...] = ()


class StepLauncher:
    """Launches steps one at a time.

    Args:
        is_overlapping: run them on a thread. A kernel that releases the GIL then runs beside the host's work; without
            it, a step runs when its result is asked for.
    """

    def __init__(self, runner: Runner, *, is_overlapping: bool) -> None:
        self._runner = runner
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ramet-forward") if is_overlapping else None

    @property
    def is_overlapping(self) -> bool:
        return self._pool is not None

    def launch(self, batch: Batch, recorders: tuple[TraceRecorder, ...] = ()) -> InFlightStep:
        """Prepare the step here, and run it. After this the batch's sequences may change.

        One that cannot even be prepared is in flight all the same: it fails in its turn, when its result is asked for.
        """
        try:
            step = self._runner.prepare(batch)
        except Exception as error:
            return InFlightStep(batch, _raising(error), recorders)
        if self._pool is None:
            return InFlightStep(batch, step, recorders)
        future: Future[Tensor] = self._pool.submit(step)
        return InFlightStep(batch, future.result, recorders)

    def close(self) -> None:
        """Wait for the step in flight and stop the thread. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)


def _raising(error: Exception) -> Callable[[], Tensor]:
    def wait() -> Tensor:
        raise error

    return wait
