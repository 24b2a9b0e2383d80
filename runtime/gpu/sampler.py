"""TritonSampler: the sampler on the device where the logits are. Two copies a step: what rows want, what they got.

    rows --pack--> edits, masks, knobs --upload--> edit_logits, mask_logits, argmax, sample --> token ids and peaks

It draws the tokens of `NumpySampler`, which defines them, but for races and shares as close as the rounding of an
exponential.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...kernels.triton.argmax import argmax
from ...kernels.triton.logits_edit import edit_logits
from ...kernels.triton.logits_mask import mask_logits
from ...kernels.triton.sampling import SamplingTensors, sample
from ..outputs import TokenLogprobs
from ..sampler import SampledToken, SamplingRow, allowed_mask, not_finite, nothing_left, out_of_range
from .device_logprobs import listing_lines, logprobs_of, read_listings, token_logprobs_of
from .download import Download
from .upload import on_device, upload

_MIN_TEMPERATURE = float(np.finfo(np.float32).tiny)


class TritonSampler:
    """Chooses the next token of every row, with kernels. Has no state.

    Args:
        device: where the logits are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """See `Sampler.sample`.

        Cost: a pass over the logits if all rows are greedy; a copy of them, and O(context) on the host for a row with
        penalties, if any is to be changed; some twenty passes where top-k or top-p cut.
        """
        return self.begin(logits, rows, range(len(rows))).finish()

    def begin(self, logits: Tensor, rows: Sequence[SamplingRow], row_indices: Sequence[int]) -> TritonDraw:
        """See `Sampler.begin`. Everything is enqueued on the current stream; nothing is read."""
        assert logits.dtype == torch.float32
        assert len(rows) == len(row_indices)
        with on_device(self._device):
            logits = _selected(logits, row_indices)
            if not rows:
                nothing = torch.empty((3, 0), dtype=torch.int64, device=self._device)
                return TritonDraw(nothing[0], Download(nothing), [], [], None, logits.shape[1])
            token_ids, peaks = argmax(logits)
            peaks_before = peaks
            if any(row.changes_logits for row in rows):
                logits_to_sample = _changed(logits, rows)
                token_ids, peaks = argmax(logits_to_sample)
            else:
                logits_to_sample = logits
            if not all(row.params.is_greedy for row in rows):
                sample(logits_to_sample, token_ids, peaks, _knobs(rows, logits.shape[1], self._device))
            chosen = Download(torch.stack((token_ids.double(), peaks.double(), peaks_before.double())))
            listed = [idx for idx, row in enumerate(rows) if row.params.logprobs is not None]
            lines = Download(_lines(logits, token_ids, listed, rows)) if listed else None
        return TritonDraw(token_ids, chosen, list(rows), listed, lines, logits.shape[1])

    def logprobs(self, logits: Tensor, token_ids: Sequence[int], top_n: int) -> list[TokenLogprobs]:
        """See `Sampler.logprobs`."""
        with on_device(self._device):
            return logprobs_of(logits, token_ids, top_n)

    def token_logprobs(self, logits: Tensor, row_indices: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """See `Sampler.token_logprobs`."""
        with on_device(self._device):
            return token_logprobs_of(logits, row_indices, token_ids)


@dataclass(frozen=True, slots=True)
class TritonDraw:
    """Tokens that kernels choose. See `Draw`.

    Attributes:
        token_ids: int64 [S] on the device.
        chosen: fp64 [3, S]: token ids, and the largest logits after and before what rows change.
        listed: the rows that want logprobs.
        lines: fp64, the numbers of their listings, of the unmodified logits (`device_logprobs.py`).
    """

    token_ids: Tensor
    chosen: Download
    rows: list[SamplingRow]
    listed: list[int]
    lines: Download | None
    vocab_size: int

    def finish(self) -> list[SampledToken]:
        """See `Draw.finish`."""
        chosen, after, before = self.chosen.wait().tolist()
        results = [
            _result(int(token_id), peak, peak_before, row, self.vocab_size)
            for token_id, peak, peak_before, row in zip(chosen, after, before, self.rows, strict=True)
        ]
        if self.lines is not None:
            listings = read_listings(self.lines.wait().numpy(), [_top_n(self.rows[idx]) for idx in self.listed])
            for idx, listing in zip(self.listed, listings, strict=True):
                if results[idx].error is None:
                    results[idx] = SampledToken(results[idx].token_id, listing)
        return results


def _selected(logits: Tensor, row_indices: Sequence[int]) -> Tensor:
    """Rows of the logits; the logits themselves if all are named."""
    if len(row_indices) == logits.shape[0]:
        return logits
    (indices,) = upload([np.array(row_indices, dtype=np.int64)], logits.device)
    return logits.index_select(0, indices)


def _result(token_id: int, peak: float, peak_before: float, row: SamplingRow, vocab_size: int) -> SampledToken:
    if not math.isfinite(peak_before):
        return SampledToken(-1, error=not_finite(peak_before))
    if peak == -math.inf:
        return SampledToken(-1, error=nothing_left(row, vocab_size))
    if not math.isfinite(peak):
        return SampledToken(-1, error=out_of_range(row))
    return SampledToken(token_id)


def _lines(logits: Tensor, token_ids: Tensor, listed: Sequence[int], rows: Sequence[SamplingRow]) -> Tensor:
    """The numbers of the listings of some rows, whose tokens the host need not know."""
    (indices,) = upload([np.array(listed, dtype=np.int64)], logits.device)
    most = max(_top_n(rows[idx]) for idx in listed)
    return listing_lines(logits, indices, token_ids.index_select(0, indices), most)


def _top_n(row: SamplingRow) -> int:
    return row.params.logprobs or 0


def _knobs(rows: Sequence[SamplingRow], vocab_size: int, device: torch.device) -> SamplingTensors:
    params = [row.params for row in rows]
    temperatures = [0.0 if entry.is_greedy else max(entry.temperature, _MIN_TEMPERATURE) for entry in params]
    columns = (
        np.array(temperatures, dtype=np.float32),
        np.array([max(0, min(entry.top_k, vocab_size)) for entry in params], dtype=np.int32),
        np.array([entry.top_p for entry in params], dtype=np.float64),
        np.array([entry.min_p for entry in params], dtype=np.float32),
        np.array([row.seed for row in rows], dtype=np.uint64).view(np.int64),
        np.array([row.sample_idx for row in rows], dtype=np.int64),
        np.array([len(row.token_ids) for row in rows], dtype=np.int64),
    )
    has_cuts = any(entry.top_p < 1.0 or 0 < entry.top_k < vocab_size for entry in params if not entry.is_greedy)
    return SamplingTensors(*upload(columns, device), has_cuts=has_cuts)


def _changed(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """A copy of the logits after masks, bans, biases and penalties."""
    vocab_size = logits.shape[1]
    changed = logits.clone()
    masked = [idx for idx, row in enumerate(rows) if row.allowed is not None]
    arrays: list[NDArray[Any]] = [*_edits(rows, vocab_size), *_penalties(rows)]
    if masked:
        arrays += [np.stack([_mask_words(rows[idx], vocab_size) for idx in masked]), np.array(masked, dtype=np.int32)]
    tensors = upload(arrays, logits.device)
    if masked:
        mask_logits(changed, *tensors[-2:])
    edit_logits(changed, *tensors[:7])
    return changed


def _mask_words(row: SamplingRow, vocab_size: int) -> NDArray[np.int32]:
    """The allowed tokens as int32 [ceil(vocab / 32)], token i as bit i % 32 of word i // 32."""
    assert row.allowed is not None
    if row.allowed.dtype == torch.int32:
        words: NDArray[np.int32] = row.allowed.cpu().numpy()
        return words
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.bool_)
    bits[:vocab_size] = allowed_mask(row.allowed, vocab_size)
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


def _edits(rows: Sequence[SamplingRow], vocab_size: int) -> list[NDArray[Any]]:
    """Rows, tokens, biases and counts of all edits, as `edit_logits` wants them: no token of a row twice."""
    row_edits = [_row_edits(row, vocab_size) if row.changes_logits else ({}, {}) for row in rows]
    token_ids: list[int] = []
    biases: list[float] = []
    counts: list[int] = []
    ends = [0]
    for bias, count in row_edits:
        ids = [*bias, *(token_id for token_id in count if token_id not in bias)]
        token_ids += ids
        biases += [bias.get(token_id, 0.0) for token_id in ids]
        counts += [count.get(token_id, -1) for token_id in ids]
        ends.append(len(token_ids))
    num_edits = [end - start for start, end in pairwise(ends)]
    return [
        np.repeat(np.arange(len(rows), dtype=np.int32), num_edits),
        np.array(token_ids, dtype=np.int32),
        np.array(biases, dtype=np.float32),
        np.array(counts, dtype=np.int32),
    ]


def _row_edits(row: SamplingRow, vocab_size: int) -> tuple[dict[int, float], dict[int, int]]:
    """Bias by token, and for tokens with a penalty how often the output has them (0: the prompt alone)."""
    params = row.params
    bias = dict(params.logit_bias or {})
    bias.update((token_id, -math.inf) for token_id in row.banned_token_ids if token_id < vocab_size)
    counts: dict[int, int] = {}
    if params.repetition_penalty != 1.0:
        counts = dict.fromkeys(row.token_ids[: row.num_prompt_tokens], 0)
    if (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0):
        for token_id in row.token_ids[row.num_prompt_tokens :]:
            counts[token_id] = counts.get(token_id, 0) + 1
    return bias, counts


def _penalties(rows: Sequence[SamplingRow]) -> list[NDArray[Any]]:
    params = [row.params for row in rows]
    return [
        np.array([entry.repetition_penalty for entry in params], dtype=np.float32),
        np.array([entry.presence_penalty for entry in params], dtype=np.float64),
        np.array([entry.frequency_penalty for entry in params], dtype=np.float64),
    ]
