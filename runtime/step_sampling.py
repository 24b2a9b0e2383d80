"""StepSampling: from the logits of a step to one token, an error or beam candidates for each of its sequences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .batch import Batch
from .outputs import TokenLogprobs
from .request_state import RequestState
from .sampler import SampledToken, Sampler, SamplingRow, allowed_mask, not_finite
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A sequence that is to get a token: its place in the batch and its row of logits."""

    idx: int
    row: int
    sequence: Sequence

    @property
    def is_free(self) -> bool:
        return self.sequence.constraint is None

    @property
    def may_stop(self) -> bool:
        request = self.sequence.request
        return self.sequence.num_output_tokens >= request.sampling_params.min_tokens + request.num_healed_tokens

    @property
    def can_go_without_mask(self) -> bool:
        params, constraint = self.sequence.request.sampling_params, self.sequence.constraint
        return constraint is not None and constraint.can_ask_by_token and not params.cuts_distribution


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
        it is a beam (those get their candidates instead) or a branch (nothing follows it).

        Args:
            logits: fp32 [R, vocab], the rows that the batch asks for.
        """
        samples: list[SampledToken | None] = [None] * len(batch.scheduled)
        wanted: list[_Wanted] = []
        row = -1
        for idx, part in enumerate(batch.scheduled):
            row += part.num_logit_rows
            sequence = part.sequence
            if not part.is_sampled or sequence.is_finished or sequence.branch is not None:
                continue
            if sequence.is_beam:
                samples[idx] = self._list_candidates(sequence, logits[row : row + 1])
                continue
            wanted.append(_Wanted(idx, row, sequence))
        self._sample_optimistically(wanted, logits, samples)
        left = [each for each in wanted if samples[each.idx] is None]
        self._sample_masked(left, logits, samples)
        return samples

    def _sample_optimistically(self, wanted: list[_Wanted], logits: Tensor, samples: list[SampledToken | None]) -> None:
        """Fill in what can be had without a mask: a free sequence's token, and a constrained one's if it is allowed.

        A race among all tokens that an allowed one wins is won by it among the allowed ones too, and most of what a
        model proposes is allowed. (Not so if top-k, top-p or min-p cut the distribution first.)
        """
        tried = [each for each in wanted if each.is_free or each.can_go_without_mask]
        for each, sampled in self._sample_rows(tried, [_unmasked_row(each) for each in tried], logits):
            constraint = each.sequence.constraint
            is_allowed = (
                constraint is None
                or sampled.error is not None
                or constraint.allows(sampled.token_id, may_stop=each.may_stop)
            )
            if is_allowed:
                samples[each.idx] = self._steered(each.sequence, sampled, logits[each.row : each.row + 1])

    def _sample_masked(self, wanted: list[_Wanted], logits: Tensor, samples: list[SampledToken | None]) -> None:
        """Fill in the tokens of constrained sequences, from the allowed ones."""
        alive, rows = [], []
        for each in wanted:
            constraint = each.sequence.constraint
            assert constraint is not None
            allowed = constraint.allowed(may_stop=each.may_stop)
            if allowed is None:
                samples[each.idx] = SampledToken(-1, error=constraint.dead_end)
            else:
                alive.append(each)
                rows.append(replace(each.sequence.sampling_row, allowed=allowed))
        for each, sampled in self._sample_rows(alive, rows, logits):
            samples[each.idx] = self._steered(each.sequence, sampled, logits[each.row : each.row + 1])

    def _sample_rows(
        self, wanted: list[_Wanted], rows: list[SamplingRow], logits: Tensor
    ) -> Iterable[tuple[_Wanted, SampledToken]]:
        if not wanted:
            return ()
        is_all = len(wanted) == logits.shape[0]
        return zip(
            wanted, self._sampler.sample(logits if is_all else logits[[each.row for each in wanted]], rows), strict=True
        )

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
            (token_id, entry.logprob + share)
            for token_id, entry in ranked[: search.num_candidates]
            if _is_acceptable(beam, token_id)
        ]
        return None


def error_of(logits: Tensor) -> SampledToken | None:
    """An error if a row of logits [rows, vocab] has NaN or +inf, or nothing but -inf."""
    for peak in logits.amax(-1).tolist():
        if not math.isfinite(peak):
            return SampledToken(-1, error=not_finite(peak))
    return None


def _is_acceptable(beam: Sequence, token_id: int) -> bool:
    """Whether a token that a mask allows would be accepted; a backend's mask may promise more than it takes, as where a
    forced text cannot be spelled."""
    constraint = beam.constraint
    return constraint is None or constraint.ends_with(token_id) or constraint.would_accept(token_id)


def _unmasked_row(wanted: _Wanted) -> SamplingRow:
    row = wanted.sequence.sampling_row
    if wanted.may_stop or not wanted.is_free:
        return row
    return replace(row, banned_token_ids=wanted.sequence.stop_token_ids)


def _masked(logits: Tensor, allowed: Tensor) -> Tensor:
    """Logits [1, vocab], -inf where a token is not allowed."""
    mask = torch.from_numpy(allowed_mask(allowed, logits.shape[1])).to(logits.device)
    return logits.masked_fill(~mask, -math.inf)
