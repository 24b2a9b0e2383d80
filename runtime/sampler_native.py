"""NativeSampler: the sampler in C++ (kernels/cpu/src/sampling.cpp), over logits on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels.cpu.sampling import PackedRows, RowLogprobs, SamplingKernels, SamplingStatus
from .logprobs import Logprob
from .outputs import TokenLogprobs
from .sampler import FinishedDraw, SampledToken, SamplingRow, draw_now, not_finite, nothing_left, out_of_range


class NativeSampler:
    """Chooses the next token of every row.

    Args:
        kernels: the C++ functions, with the number of threads they use.
    """

    def __init__(self, kernels: SamplingKernels) -> None:
        self._kernels = kernels

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """See `Sampler.sample`. Cost: as `SamplingKernels.sample`; O(context) more for a row with penalties."""
        assert logits.shape[0] == len(rows)
        logits = _on_cpu(logits)
        packed = PackedRows()
        for row in rows:
            _pack(packed, row, logits.shape[1])
        sampled = self._kernels.sample(logits, packed)
        results = [SampledToken(token_id) for token_id in sampled.token_ids]
        if any(sampled.statuses):
            for idx, (status, peak, row) in enumerate(zip(sampled.statuses, sampled.peaks, rows, strict=True)):
                if status != SamplingStatus.SAMPLED:
                    results[idx] = SampledToken(-1, error=_reason(status, peak, row, logits.shape[1]))
        self._add_logprobs(logits, rows, results)
        return results

    def begin(self, logits: Tensor, rows: Sequence[SamplingRow], row_indices: Sequence[int]) -> FinishedDraw:
        """See `Sampler.begin`."""
        return draw_now(self, logits, rows, row_indices)

    def logprobs(self, logits: Tensor, token_ids: Sequence[int], top_n: int) -> list[TokenLogprobs]:
        """See `Sampler.logprobs`. Cost: as `SamplingKernels.logprobs`."""
        num_rows = len(token_ids)
        assert logits.shape[0] == num_rows
        listings = self._kernels.logprobs(_on_cpu(logits), range(num_rows), token_ids, [top_n] * num_rows)
        return [_as_logprobs(token_id, listing) for token_id, listing in zip(token_ids, listings, strict=True)]

    def token_logprobs(self, logits: Tensor, row_indices: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """See `Sampler.token_logprobs`. Cost: as `SamplingKernels.logprobs` of a row for each token."""
        listings = self._kernels.logprobs(_on_cpu(logits), row_indices, token_ids, [0] * len(token_ids))
        return [listing.own_logprob for listing in listings]

    def _add_logprobs(self, logits: Tensor, rows: Sequence[SamplingRow], results: list[SampledToken]) -> None:
        """Put logprobs into the results of the rows that want them. Mutates `results`."""
        wanted = [
            (idx, result.token_id, row.params.logprobs)
            for idx, (row, result) in enumerate(zip(rows, results, strict=True))
            if row.params.logprobs is not None and result.error is None
        ]
        if not wanted:
            return
        row_indices, token_ids, top_ns = zip(*wanted, strict=True)
        listings = self._kernels.logprobs(logits, row_indices, token_ids, top_ns)
        for idx, token_id, listing in zip(row_indices, token_ids, listings, strict=True):
            results[idx] = SampledToken(token_id, _as_logprobs(token_id, listing))


def _on_cpu(logits: Tensor) -> Tensor:
    """fp32 logits whose rows are packed; the same memory if they are so already."""
    assert logits.dtype == torch.float32
    logits = logits.detach().cpu()
    return logits if logits.stride(1) == 1 else logits.contiguous()


def _pack(packed: PackedRows, row: SamplingRow, vocab_size: int) -> None:
    params = row.params
    is_changed = row.changes_logits
    if is_changed:
        _pack_changes(packed, row, vocab_size)
    top_k = params.top_k if 0 < params.top_k < vocab_size else 0
    packed.add(
        row.seed,
        row.sample_idx,
        len(row.token_ids),
        params.temperature,
        params.top_p,
        params.min_p,
        top_k,
        is_changed=is_changed,
    )


def _pack_changes(packed: PackedRows, row: SamplingRow, vocab_size: int) -> None:
    params = row.params
    has_penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0)
    bias = params.logit_bias or {}
    packed.add_changes(
        allowed=None if row.allowed is None else row.allowed.cpu(),
        banned_ids=row.banned_token_ids,
        biased_ids=bias.keys(),
        biases=bias.values(),
        sequence_ids=row.token_ids if has_penalties else (),
        num_prompt_ids=row.num_prompt_tokens,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        vocab_size=vocab_size,
    )


def _reason(status: int, peak: float, row: SamplingRow, vocab_size: int) -> str:
    if status == SamplingStatus.NOT_FINITE:
        return not_finite(peak)
    return nothing_left(row, vocab_size) if status == SamplingStatus.NOTHING_LEFT else out_of_range(row)


def _as_logprobs(token_id: int, listing: RowLogprobs) -> TokenLogprobs:
    """Its own token first, then the most likely ones in order."""
    logprobs = {token_id: Logprob(listing.own_logprob, listing.own_rank)}
    for idx, (listed_id, logprob) in enumerate(listing.listed):
        logprobs.setdefault(listed_id, Logprob(logprob, idx + 1))
    return logprobs
