"""RequestState: a request while it is alive: its sequences and what will be reported of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from .outputs import CompletionOutput, RequestMetrics, RequestOutput
from .request import Request
from .sequence import Sequence


@dataclass(slots=True)
class RequestState:
    """A live request and its n sequences."""

    request: Request
    sequences: list[Sequence]
    metrics: RequestMetrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = RequestMetrics(arrival_time=self.request.arrival_time)

    @property
    def is_finished(self) -> bool:
        return all(sequence.is_finished for sequence in self.sequences)

    def output(self) -> RequestOutput:
        """What is known so far, as a RequestOutput."""
        first = self.sequences[0]
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=list(self.request.prompt_token_ids),
            prompt_logprobs=first.prompt_logprobs,
            outputs=[_completion(sequence) for sequence in self.sequences],
            finished=self.is_finished,
            metrics=self.metrics,
            num_cached_tokens=first.num_cached_tokens or 0,
            error=next((sequence.error for sequence in self.sequences if sequence.error is not None), None),
        )


def _completion(sequence: Sequence) -> CompletionOutput:
    detokenizer = sequence.detokenizer
    return CompletionOutput(
        index=sequence.sample_idx,
        text=detokenizer.text,
        token_ids=sequence.output_token_ids,
        cumulative_logprob=sequence.cumulative_logprob if sequence.logprobs is not None else None,
        logprobs=sequence.logprobs,
        finish_reason=sequence.finish_reason,
        stop_reason=sequence.stop_reason,
        num_text_tokens=detokenizer.num_tokens_within_text,
        leftover_text=detokenizer.leftover_text,
    )
