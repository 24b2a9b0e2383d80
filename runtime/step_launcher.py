"""StepLauncher: runs a prepared step in place, on a thread of its own, or on a device that computes by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from torch import Tensor

from .batch import Batch
from .runner import Runner
from .sampler import Sampler
from .sequence import Sequence
from .step_sampling import StepDraw, StepSampling
from .trace.recorder import TraceRecorder

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class InFlightStep:
    """A step that was launched.

    Attributes:
        logits: returns its logits as soon as they are there, or on a device may be read there, or raises what the step
            raised.
        recorders: of the traces that the step was entered in.
        draw: its sampling, once it is under way.
        void: sequences for which it computes what turned out not to follow, besides those that have ended.
    """

    batch: Batch
    logits: Callable[[], Tensor]
    recorders: tuple[TraceRecorder, ...] = ()
    draw: StepDraw | None = None
    void: set[Sequence] = field(default_factory=set)

    @property
    def can_be_overtaken(self) -> bool:
        """Whether the next step can be planned while this one is in flight."""
        return self.draw is not None and not self.draw.is_read_by_host

    @property
    def drawn_token_ids(self) -> Tensor | None:
        """int64 on the device."""
        return None if self.draw is None else self.draw.token_ids

    def wasted(self) -> list[Sequence]:
        """Sequences whose results are of no use to anybody."""
        return [
            part.sequence for part in self.batch.scheduled if part.sequence.is_finished or part.sequence in self.void
        ]

    def begin_sampling(self, sampling: StepSampling) -> None:
        """Set its sampling going. If that fails, `logits` raises it."""
        try:
            self.draw = draw = sampling.begin(self.batch, self.logits(), self.void)
            self.logits = lambda: draw.logits
        except Exception as error:
            self.logits = _raising(error)


class StepLauncher:
    """Launches steps one at a time.

    Args:
        is_overlapping: do not wait for them here. Where the runner can run ahead, the device computes meanwhile;
            elsewhere a thread does, and a kernel that releases the GIL runs beside the host's work.
    """

    def __init__(self, runner: Runner, *, is_overlapping: bool) -> None:
        self._runner = runner
        self.is_overlapping = is_overlapping
        self.is_pipelined = is_overlapping and runner.can_run_ahead
        has_thread = is_overlapping and not self.is_pipelined
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ramet-forward") if has_thread else None

    def launch(self, batch: Batch, recorders: tuple[TraceRecorder, ...] = ()) -> InFlightStep:
        """Prepare the step here, and run it. After this the batch's sequences may change.

        One that cannot even be prepared is in flight all the same: it fails in its turn, when its result is asked for.
        """
        try:
            step = self._runner.prepare(batch)
            if self.is_pipelined:
                logits = step()
                return InFlightStep(batch, lambda: logits, recorders)
        except Exception as error:
            return InFlightStep(batch, _raising(error), recorders)
        if self._pool is None:
            return InFlightStep(batch, step, recorders)
        future: Future[Tensor] = self._pool.submit(step)
        return InFlightStep(batch, future.result, recorders)

    def wait(self, step: InFlightStep, sampler: Sampler) -> None:
        """Wait until a launched step is done with, whatever came of it. Its results are dropped."""
        try:
            logits = step.logits()
            if self.is_pipelined:
                sampler.begin(logits, [], []).finish()  # draws nothing, behind all that was launched
        except Exception as error:
            logger.info("A step that nobody waits for any more failed", exc_info=error)

    def close(self) -> None:
        """Stop the thread; a step that was not waited for ends first. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)


def _raising(error: Exception) -> Callable[[], Tensor]:
    def logits() -> Tensor:
        raise error

    return logits
