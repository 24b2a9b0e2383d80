"""StepFailures: what becomes of the requests of a step that raised. Those that are tried again are suspects then."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from .errors import RequestFailedError, TensorParallelError
from .metrics import EngineMetrics
from .output_processor import OutputProcessor
from .outputs import FinishReason, OutputChunk
from .request_state import RequestState
from .scheduler import Scheduler
from .sequence import Sequence
from .step_launcher import InFlightStep

logger = logging.getLogger(__name__)

_MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class StepFailures:
    """Belongs to an engine, whose sequences, queues and counts it mutates.

    Attributes:
        requests: the live requests by id.
    """

    requests: Mapping[str, RequestState]
    scheduler: Scheduler
    outputs: OutputProcessor
    metrics: EngineMetrics

    def handle(self, step: InFlightStep, later: Iterable[InFlightStep], cause: Exception) -> list[OutputChunk]:
        """Fail the request that a step failed for; where that is not known yet, try its requests again.

        Args:
            step: nothing of it was accepted. Its tokens are not pending any more.
            later: steps in flight that were launched behind it; what they compute of its sequences is void.

        Returns:
            The last chunks of the requests that failed.
        """
        self.metrics.num_failed_steps += 1
        goals = _goals(step)
        request_ids = list(dict.fromkeys(sequence.request.request_id for sequence in goals))
        if not request_ids:
            logger.warning("A step failed that was computed in vain: all that were in it had ended", exc_info=cause)
            return []
        if _is_of_one_request(step) or _is_final(cause):
            return self._give_up(request_ids, cause)
        self._try_again(goals, request_ids, cause)
        for other in later:
            other.void.update(goals)
        return []

    def _try_again(self, goals: Mapping[Sequence, int], request_ids: list[str], cause: Exception) -> None:
        """Make all of the step suspects. They keep their blocks, but for those that copies were to be made to: it is
        not known whether they were, and what they were to be made from may be overwritten."""
        logger.warning(
            "A step of %d requests failed with %r; they are computed again in smaller steps, to find the one it failed "
            "for: %s",
            len(request_ids),
            cause,
            _listed(request_ids),
        )
        self.metrics.num_retried_sequences += len(goals)
        for sequence in goals:
            assert sequence.block_table is not None
            if sequence.num_computed_tokens < sequence.num_tokens:
                sequence.beam_candidates = None
            if not sequence.block_table.is_tail_written:
                self.scheduler.put_back(sequence)
        self.scheduler.suspects.add(goals)

    def _give_up(self, request_ids: list[str], cause: Exception) -> list[OutputChunk]:
        """End these requests with this error."""
        logger.error("A step failed, and these requests with it: %s", _listed(request_ids), exc_info=cause)
        chunks: list[OutputChunk] = []
        for request_id in request_ids:
            state = self.requests.get(request_id)
            if state is None:  # a suspect that has ended since
                continue
            self.metrics.num_failed += 1
            error = RequestFailedError(f"request {request_id} failed: the step that computed it raised {cause!r}")
            error.__cause__ = cause
            chunks += self.outputs.give_up(state, FinishReason.ERROR, error)
        return chunks


def _goals(step: InFlightStep) -> dict[Sequence, int]:
    """Who was in a step and has not ended, and how far each was to be computed. A sequence that was forked but is in no
    part is among them: a copy was to be made for it."""
    goals = {sequence: sequence.num_computed_tokens for sequence in step.batch.forked}
    goals |= {part.sequence: part.end for part in step.batch.scheduled}
    return {sequence: end for sequence, end in goals.items() if not (sequence.is_finished or sequence in step.void)}


def _is_of_one_request(step: InFlightStep) -> bool:
    """Whether it can have failed for one request only. Those who have ended, or were in it in vain, were in it."""
    sequences = (*step.batch.forked, *(part.sequence for part in step.batch.scheduled))
    return len({sequence.request.request_id for sequence in sequences}) == 1


def _is_final(cause: Exception) -> bool:
    """Whether nothing can be computed any more, whoever is in a step. (Memory that lacks for one may do for less.)"""
    return isinstance(cause, TensorParallelError | torch.AcceleratorError)


def _listed(request_ids: list[str]) -> str:
    more = len(request_ids) - _MAX_NAMED
    return ", ".join(request_ids[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
