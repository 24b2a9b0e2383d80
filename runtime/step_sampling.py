"""StepSampling: from the logits of a step to one token, an error or beam candidates for each of its sequences.

`sample` waits for the tokens. `begin` leaves them to the device and returns a StepDraw: until that is finished, its
sequences have a pending token each, with which the next step can be planned and launched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from ..sampling_params import SamplingParams
from .batch import Batch, ScheduledSequence
from .outputs import TokenLogprobs
from .request_state import RequestState
from .sampler import Draw, SampledToken, Sampler, SamplingRow, allowed_mask, not_finite
from .sequence import Sequence

T = TypeVar("T")

_WATCHED_ROW = SamplingRow(SamplingParams(temperature=0.0), seed=0, sample_idx=0, token_ids=(), num_prompt_tokens=0)
"""For a row that is sampled only to see whether it can be; nobody gets the token."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A sequence that is to get a token: its place in the batch and its row of logits.

    Attributes:
        is_watched: it gets none: it has more tokens than the step computed. What was computed may be bad all the same.
    """

    idx: int
    row: int
    sequence: Sequence
    is_watched: bool = False

    @property
    def is_free(self) -> bool:
        return self.is_watched or self.sequence.constraint is None

    @property
    def may_stop(self) -> bool:
        request = self.sequence.request
        return self.sequence.num_output_tokens >= request.sampling_params.min_tokens + request.num_healed_tokens

    @property
    def may_need_logits(self) -> bool:
        """A token that it is steered to needs logprobs."""
        return not self.is_free and self.sequence.sampling_row.params.logprobs is not None

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
        it is a beam (those get their candidates instead) or a branch (nothing follows it). All but branches have an
        error if their last row is not finite, whether they get a token or not.

        Args:
            logits: fp32 [R, vocab], the rows that the batch asks for.
        """
        samples: list[SampledToken | None] = [None] * len(batch.scheduled)
        wanted, beams = _wanted(batch, ())
        self.list_candidates(beams, logits, samples)
        self._sample_optimistically(wanted, logits, samples)
        left = [each for each in wanted if samples[each.idx] is None and not each.is_watched]
        self._sample_masked(left, logits, samples)
        return samples

    def begin(self, batch: Batch, logits: Tensor, void: Collection[Sequence]) -> StepDraw:
        """Set the same going without waiting for a device. Constrained rows are masked at once: to try without would
        be a round trip.

        Args:
            logits: fp32 [R, vocab], which may still be being computed.
            void: sequences whose parts are void, besides those that have ended.

        Mutates the sequences: they have tokens in flight, and pending ones, until the draw is finished.
        """
        parts = [part for part in batch.scheduled if not (part.sequence.is_finished or part.sequence in void)]
        wanted, beams = _wanted(batch, void)
        drawn: list[_Wanted] = []
        ended: list[tuple[_Wanted, SampledToken]] = []
        rows: list[SamplingRow] = []
        for each in wanted:
            row = _unmasked_row(each) if each.is_free else _masked_row(each)
            if isinstance(row, SampledToken):
                ended.append((each, row))
            else:
                drawn.append(each)
                rows.append(row)
        draw = self._sampler.begin(logits, rows, [each.row for each in drawn])
        return StepDraw(self, len(batch.scheduled), logits, parts, drawn, ended, beams, draw)

    def _sample_optimistically(self, wanted: list[_Wanted], logits: Tensor, samples: list[SampledToken | None]) -> None:
        """Fill in what can be had without a mask: a free sequence's token, and a constrained one's if it is allowed.

        A race among all tokens that an allowed one wins is won by it among the allowed ones too, and most of what a
        model proposes is allowed. (Not so if top-k, top-p or min-p cut the distribution first.)
        """
        tried = [each for each in wanted if each.is_free or each.can_go_without_mask]
        for each, sampled in self._sample_rows(tried, [_unmasked_row(each) for each in tried], logits):
            constraint = each.sequence.constraint
            if each.is_watched:
                samples[each.idx] = _only_error(sampled)
                continue
            is_allowed = (
                constraint is None
                or sampled.error is not None
                or _asked(constraint.allows, sampled.token_id, may_stop=each.may_stop)
            )
            if isinstance(is_allowed, SampledToken):
                samples[each.idx] = is_allowed
            elif is_allowed:
                samples[each.idx] = self.steered(each, sampled, logits)

    def _sample_masked(self, wanted: list[_Wanted], logits: Tensor, samples: list[SampledToken | None]) -> None:
        """Fill in the tokens of constrained sequences, from the allowed ones."""
        alive, rows = [], []
        for each in wanted:
            row = _masked_row(each)
            if isinstance(row, SampledToken):
                samples[each.idx] = row
            else:
                alive.append(each)
                rows.append(row)
        for each, sampled in self._sample_rows(alive, rows, logits):
            samples[each.idx] = self.steered(each, sampled, logits)

    def _sample_rows(
        self, wanted: list[_Wanted], rows: list[SamplingRow], logits: Tensor
    ) -> Iterable[tuple[_Wanted, SampledToken]]:
        if not wanted:
            return ()
        is_all = len(wanted) == logits.shape[0]
        return zip(
            wanted, self._sampler.sample(logits if is_all else logits[[each.row for each in wanted]], rows), strict=True
        )

    def steered(self, wanted: _Wanted, sampled: SampledToken, logits: Tensor) -> SampledToken:
        """The token, or another one if the constrained text could not end in time after it.

        Args:
            logits: all rows of the step.
        """
        sequence = wanted.sequence
        if sequence.constraint is None or sampled.error is not None:
            return sampled
        token_id = _asked(sequence.constraint.steer, sampled.token_id, sequence.num_remaining_tokens)
        if isinstance(token_id, SampledToken):
            return token_id
        if token_id == sampled.token_id:
            return sampled
        logprobs: TokenLogprobs | None = None
        if sampled.logprobs is not None:
            top_n = sequence.sampling_row.params.logprobs or 0
            (logprobs,) = self._sampler.logprobs(logits[wanted.row : wanted.row + 1], [token_id], top_n)
        return SampledToken(token_id, logprobs)

    def list_candidates(self, beams: list[_Wanted], logits: Tensor, samples: list[SampledToken | None]) -> None:
        """Give beams their likeliest next tokens. Fills in the errors of those that have none."""
        for each in beams:
            samples[each.idx] = self._list_candidates(each.sequence, logits[each.row : each.row + 1])

    def _list_candidates(self, beam: Sequence, logits: Tensor) -> SampledToken | None:
        """Give a beam its likeliest next tokens, of logits [1, vocab]. Returns an error if there are none."""
        search = self._requests[beam.request.request_id].beam_search
        assert search is not None
        error = error_of(logits)
        if error is not None:
            return error
        masked, share = logits, 0.0
        if beam.constraint is not None:
            allowed = _asked(beam.constraint.allowed)
            if isinstance(allowed, SampledToken):
                return allowed
            if allowed is None:
                beam.beam_candidates = []
                return None
            masked = _masked(logits, allowed)
            share = float(masked.logsumexp(-1) - logits.logsumexp(-1))  # logprobs stay those of all tokens
        (listing,) = self._sampler.logprobs(masked, [int(masked.argmax())], min(search.num_candidates, logits.shape[1]))
        ranked = sorted(listing.items(), key=lambda item: item[1].rank)
        likeliest = [(token_id, entry.logprob + share) for token_id, entry in ranked[: search.num_candidates]]
        acceptable = _asked(_acceptable, beam, likeliest)
        if isinstance(acceptable, SampledToken):
            return acceptable
        beam.beam_candidates = acceptable
        return None


class StepDraw:
    """A step whose tokens are being chosen, behind its forward pass. Made by `StepSampling.begin`.

    Attributes:
        token_ids: int64 on the device; each sequence knows its row.
        logits: fp32 [R, vocab]. No rows if nobody is going to read them: the next step's may take their place then.
        is_read_by_host: the next step cannot be planned before this one is finished.
        unsampled: sequences whose parts do not reach their last token. Some turn out so late: forced tokens follow.
        steered: after `finish`, sequences that got another token than the drawn one, with which a step may have gone
            on.
    """

    def __init__(
        self,
        sampling: StepSampling,
        num_parts: int,
        logits: Tensor,
        parts: list[ScheduledSequence],
        drawn: list[_Wanted],
        ended: list[tuple[_Wanted, SampledToken]],
        beams: list[_Wanted],
        draw: Draw,
    ) -> None:
        self._sampling = sampling
        self._num_parts = num_parts
        self._parts, self._drawn, self._ended, self._beams = parts, drawn, ended, beams
        self._draw = draw
        self.token_ids = draw.token_ids
        self.is_read_by_host = any(part.is_read_by_host for part in parts)
        self.unsampled = [part.sequence for part in parts if not part.is_sampled]
        self.steered: list[Sequence] = []
        is_kept = self.is_read_by_host or any(each.may_need_logits for each in drawn)
        self.logits = logits if is_kept else logits.new_empty((0, logits.shape[1]))
        for part in parts:
            part.sequence.num_in_flight_tokens = part.num_new_tokens
        for row, each in enumerate(drawn):
            each.sequence.pending_row = -1 if each.is_watched else row

    def wait(self) -> list[SampledToken]:
        """Wait for the device. From now on nothing of the sequences is in flight or pending."""
        for part in self._parts:
            part.sequence.num_in_flight_tokens = 0
            part.sequence.pending_row = -1
        return self._draw.finish()

    def finish(self, results: list[SampledToken]) -> list[SampledToken | None]:
        """What `StepSampling.sample` returns, from what `wait` returned."""
        samples: list[SampledToken | None] = [None] * self._num_parts
        for each, error in self._ended:
            samples[each.idx] = error
        for each, sampled in zip(self._drawn, results, strict=True):
            if each.is_watched:
                samples[each.idx] = _only_error(sampled)
            elif not each.sequence.is_finished:
                samples[each.idx] = steered = self._sampling.steered(each, sampled, self.logits)
                if steered.token_id != sampled.token_id:
                    self.steered.append(each.sequence)
        alive = [each for each in self._beams if not each.sequence.is_finished]
        self._sampling.list_candidates(alive, self.logits, samples)
        return samples


def _wanted(batch: Batch, void: Collection[Sequence]) -> tuple[list[_Wanted], list[_Wanted]]:
    """Who is to get a token or is only watched, in order of their rows, and which beams are to get candidates."""
    wanted: list[_Wanted] = []
    beams: list[_Wanted] = []
    row = -1
    for idx, part in enumerate(batch.scheduled):
        row += part.num_logit_rows
        sequence = part.sequence
        if sequence.is_finished or sequence.branch is not None or sequence in void:  # branches: see `StepAcceptance`
            continue
        if not part.is_sampled:
            wanted.append(_Wanted(idx, row, sequence, is_watched=True))
        else:
            (beams if sequence.is_beam else wanted).append(_Wanted(idx, row, sequence))
    return wanted, beams


def _only_error(sampled: SampledToken) -> SampledToken | None:
    return sampled if sampled.error is not None else None


def error_of(logits: Tensor) -> SampledToken | None:
    """An error if a row of logits [rows, vocab] has NaN or +inf, or nothing but -inf."""
    for peak in logits.amax(-1).tolist():
        if not math.isfinite(peak):
            return SampledToken(-1, error=not_finite(peak))
    return None


def _asked(question: Callable[..., T], *args: object, **options: object) -> T | SampledToken:
    """What a sequence's grammar answers; an error for that sequence alone if it raises."""
    try:
        return question(*args, **options)
    except Exception as cause:
        return SampledToken(-1, error=f"its constraint raised {cause!r}", cause=cause)


def _acceptable(beam: Sequence, candidates: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Those of the tokens that a mask allows which would be accepted; a backend's mask may promise more than it takes,
    as where a forced text cannot be spelled."""
    constraint = beam.constraint
    if constraint is None:
        return candidates
    return [
        (token_id, logprob)
        for token_id, logprob in candidates
        if constraint.ends_with(token_id) or constraint.would_accept(token_id)
    ]


def _masked_row(wanted: _Wanted) -> SamplingRow | SampledToken:
    """The row, good until the sequence's constraint is asked again; or why there is no token, as at a dead end."""
    constraint = wanted.sequence.constraint
    assert constraint is not None
    allowed = _asked(constraint.allowed, may_stop=wanted.may_stop)
    if isinstance(allowed, SampledToken):
        return allowed
    if allowed is None:
        return SampledToken(-1, error=constraint.dead_end)
    return replace(wanted.sequence.sampling_row, allowed=allowed)


def _unmasked_row(wanted: _Wanted) -> SamplingRow:
    if wanted.is_watched:
        return _WATCHED_ROW
    row = wanted.sequence.sampling_row
    if wanted.may_stop or not wanted.is_free:
        return row
    return replace(row, banned_token_ids=wanted.sequence.stop_token_ids)


def _masked(logits: Tensor, allowed: Tensor) -> Tensor:
    """Logits [1, vocab], -inf where a token is not allowed."""
    mask = torch.from_numpy(allowed_mask(allowed, logits.shape[1])).to(logits.device)
    return logits.masked_fill(~mask, -math.inf)
