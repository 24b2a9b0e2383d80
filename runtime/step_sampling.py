"""StepSampling: from the logits of a step to one token, an error or beam candidates for each of its sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from .batch import Batch
from .outputs import TokenLogprobs
from .request_state import RequestState
from .sampler import SampledToken, Sampler, SamplingRow, allowed_mask, not_finite
from .sequence import Sequence

DEAD_END = "its constraint is at a dead end: the text is not complete, and no token of this vocabulary may come next"


class StepSampling:
    """Chooses tokens within what the sequences' grammars allow.

    Args:
        requests: the live requests by id.
    """

    def __init__(self, sampler: Sampler, requests: Mapping[str, RequestState]) -> None:
        self._sampler = sampler
        self._requests = requests

    def sample(self, batch: Batch, logits: Tensor) -> list[SampledToken | None]:
        """One entry per scheduled sequence, None where the step did not reach its last token, it has ended meanwhile,
        or it is a beam: those get their candidates instead.

        Args:
            logits: fp32 [R, vocab], the rows that the batch asks for.
        """
        samples: list[SampledToken | None] = [None] * len(batch.scheduled)
        wanted: list[tuple[int, int, SamplingRow]] = []  # index in the batch, row of logits
        row = -1
        for idx, part in enumerate(batch.scheduled):
            row += part.num_logit_rows
            sequence = part.sequence
            if not part.is_sampled or sequence.is_finished:
                continue
            if sequence.is_beam:
                samples[idx] = self._list_candidates(sequence, logits[row : row + 1])
                continue
            sampling_row = _sampling_row(sequence)
            if sampling_row is None:
                samples[idx] = SampledToken(-1, error=DEAD_END)
            else:
                wanted.append((idx, row, sampling_row))
        if not wanted:
            return samples
        indices, logit_rows, rows = zip(*wanted, strict=True)
        is_all = len(logit_rows) == logits.shape[0]
        sampled = self._sampler.sample(logits if is_all else logits[list(logit_rows)], rows)
        for idx, row, result in zip(indices, logit_rows, sampled, strict=True):
            samples[idx] = self._steered(batch.scheduled[idx].sequence, result, logits[row : row + 1])
        return samples

    def _steered(self, sequence: Sequence, sampled: SampledToken, logits: Tensor) -> SampledToken:
        """The token, or another one if the constrained text could not end in time after it."""
        if sequence.constraint is None or sampled.error is not None:
            return sampled
        token_id = sequence.constraint.steer(sampled.token_id, sequence.num_remaining_tokens)
        if token_id == sampled.token_id:
            return sampled
        logprobs: TokenLogprobs | None = None
        if sampled.logprobs is not None:
            top_n = sequence.sampling_row.params.logprobs or 0
            (logprobs,) = self._sampler.logprobs(logits, [token_id], top_n)
        return SampledToken(token_id, logprobs)

    def _list_candidates(self, beam: Sequence, logits: Tensor) -> SampledToken | None:
        """Give a beam its likeliest next tokens, of logits [1, vocab]. Returns an error if there are none."""
        search = self._requests[beam.request.request_id].beam_search
        assert search is not None
        error = error_of(logits)
        if error is not None:
            return error
        masked, share = logits, 0.0
        if beam.constraint is not None:
            allowed = beam.constraint.allowed()
            if allowed is None:
                beam.beam_candidates = []
                return None
            masked = _masked(logits, allowed)
            share = float(masked.logsumexp(-1) - logits.logsumexp(-1))  # logprobs stay those of all tokens
        (listing,) = self._sampler.logprobs(masked, [int(masked.argmax())], min(search.num_candidates, logits.shape[1]))
        ranked = sorted(listing.items(), key=lambda item: item[1].rank)
        beam.beam_candidates = [
            (token_id, entry.logprob + share) for token_id, entry in ranked[: search.num_candidates]
        ]
        return None


def error_of(logits: Tensor) -> SampledToken | None:
    """An error if a row of logits [rows, vocab] has NaN or +inf, or nothing but -inf."""
    for peak in logits.amax(-1).tolist():
        if not math.isfinite(peak):
            return SampledToken(-1, error=not_finite(peak))
    return None


def _sampling_row(sequence: Sequence) -> SamplingRow | None:
    """What the sampler is told of a sequence; None if its grammar allows no token."""
    row = sequence.sampling_row
    may_stop = sequence.num_output_tokens >= row.params.min_tokens
    if sequence.constraint is not None:
        allowed = sequence.constraint.allowed(may_stop=may_stop)
        return None if allowed is None else replace(row, allowed=allowed)
    return row if may_stop else replace(row, banned_token_ids=sequence.stop_token_ids)


def _masked(logits: Tensor, allowed: Tensor) -> Tensor:
    """Logits [1, vocab], -inf where a token is not allowed."""
    mask = torch.from_numpy(allowed_mask(allowed, logits.shape[1])).to(logits.device)
    return logits.masked_fill(~mask, -math.inf)
