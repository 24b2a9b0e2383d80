"""RequestState: a request while it is alive: its sequences and what will be reported of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from .beam_search import BeamSearch
from .outputs import CompletionOutput, RequestMetrics, RequestOutput
from .request import Request
from .sequence import Sequence
from .trie_logprobs import TrieLogprobs


@dataclass(slots=True)
class RequestState:
    """A live request and its sequences.

    Attributes:
        sequences: one per sample; of a beam search the live beams, best first; of a scoring request its branches.
        beam_search: the search these beams belong to, if it is one.
        scoring: what is known of its continuations, if it is a scoring request.
        num_open: sequences whose last chunk has not been made yet.
    """

    request: Request
    sequences: list[Sequence]
    beam_search: BeamSearch | None = None
    scoring: TrieLogprobs | None = None
    num_open: int = field(init=False)
    metrics: RequestMetrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = RequestMetrics(arrival_time=self.request.arrival_time)
        self.num_open = len(self.sequences)

    @property
    def is_ranked(self) -> bool:
        """Which outputs are reported, and in what order, is known only when all have ended."""
        params = self.request.sampling_params
        return params.use_beam_search or params.is_best_of

    def output(self, completions: list[CompletionOutput]) -> RequestOutput:
        """What is known so far, with these outputs."""
        first = self.sequences[0]
        error = next((sequence.error for sequence in self.sequences if sequence.error is not None), None)
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=list(self.request.prompt_token_ids),
            prompt_logprobs=first.prompt_logprobs,
            outputs=completions,
            finished=self.num_open == 0,
            metrics=self.metrics,
            num_cached_tokens=first.num_cached_tokens or 0,
            num_healed_tokens=self.request.num_healed_tokens,
            error=error,
            continuations=self.scoring.result() if self.scoring is not None and error is None else None,
        )
