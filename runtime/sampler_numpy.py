"""NumpySampler: the sampler where there is no C++ library, and the definition the C++ one is tested against.

Rows are worked on one by one in one thread of the host; at the size of a vocabulary that is faster than waking several
threads for each small operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..sampling_params import SamplingParams
from .logprobs import Ids, Row, largest, logprobs_of, to_numpy, token_logprobs_of
from .outputs import TokenLogprobs
from .random_stream import waiting_times
from .sampler import (
    FinishedDraw,
    SampledToken,
    SamplingRow,
    allowed_mask,
    draw_now,
    not_finite,
    nothing_left,
    out_of_range,
)

_MIN_TEMPERATURE = float(np.finfo(np.float32).tiny)
_LIKELY = np.float32(2.0**-7)
_NEGLIGIBLE = np.float32(1e-13)
"""A token this much less likely than the likeliest is not drawn: all of them together come up once in 10**8 draws."""

_BLOCK_LEN = 512


class NumpySampler:
    """Chooses the next token of every row. Has no state."""

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """See `Sampler.sample`.

        Cost: one argmax if all rows are greedy and change no logits. Otherwise a few passes over each row, and
        O(context) more for a row with penalties.
        """
        assert logits.dtype == torch.float32
        assert logits.ndim == 2
        assert logits.shape[0] == len(rows)
        if all(row.params.is_greedy and not row.changes_logits for row in rows):
            token_ids, peaks = _argmax(logits)
            choices: list[int | str] = [
                token_id if math.isfinite(peak) else not_finite(peak)
                for token_id, peak in zip(token_ids, peaks, strict=True)
            ]
        else:
            logits = logits.detach().cpu()
            choices = [_choose(row_logits, row) for row_logits, row in zip(to_numpy(logits), rows, strict=True)]
        return [
            _sampled(choice, logits[idx : idx + 1], row.params)
            for idx, (choice, row) in enumerate(zip(choices, rows, strict=True))
        ]

    def begin(self, logits: Tensor, rows: Sequence[SamplingRow], row_indices: Sequence[int]) -> FinishedDraw:
        """See `Sampler.begin`."""
        return draw_now(self, logits, rows, row_indices)

    def logprobs(self, logits: Tensor, token_ids: Sequence[int], top_n: int) -> list[TokenLogprobs]:
        """See `Sampler.logprobs`."""
        return logprobs_of(logits, token_ids, top_n)

    def token_logprobs(self, logits: Tensor, row_indices: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """See `Sampler.token_logprobs`."""
        return token_logprobs_of(logits, row_indices, token_ids)


def _sampled(choice: int | str, logits: Tensor, params: SamplingParams) -> SampledToken:
    if isinstance(choice, str):
        return SampledToken(-1, error=choice)
    if params.logprobs is None:
        return SampledToken(choice)
    return SampledToken(choice, logprobs_of(logits, (choice,), params.logprobs)[0])


def _argmax(logits: Tensor) -> tuple[list[int], list[float]]:
    """The largest logit of each row: its token id, the lowest of equals, and its value, NaN if the row has one."""
    if logits.device.type != "cpu":
        peaks, token_ids = logits.max(dim=-1)
        return token_ids.tolist(), peaks.tolist()
    rows = to_numpy(logits)
    best = rows.argmax(axis=-1)
    return best.tolist(), rows[np.arange(len(best)), best].tolist()


def _choose(logits: Row, row: SamplingRow) -> int | str:
    """The token chosen from logits [vocab], or why there is none."""
    peak = float(logits.max())
    if not math.isfinite(peak):
        return not_finite(peak)
    logits = change_logits(logits, row)
    peak = float(logits.max())
    if peak == -math.inf:
        return nothing_left(row, len(logits))
    if not math.isfinite(peak):
        return out_of_range(row)
    if row.params.is_greedy:
        return int(logits.argmax())
    token_ids, weights = kept_tokens(logits, row.params)
    return _draw(token_ids, weights, row)


def change_logits(logits: Row, row: SamplingRow) -> Row:
    """The logits after allowed tokens, bans, logit_bias and penalties, in this order.

    Args:
        logits: float32 [vocab]; not changed.

    Returns:
        float32 [vocab]; -inf for tokens that must not be sampled. The same array if nothing is to be changed.
    """
    if not row.changes_logits:
        return logits
    params = row.params
    changed = logits.copy()
    if row.allowed is not None:
        changed[~allowed_mask(row.allowed, len(changed))] = -np.inf
    if row.banned_token_ids:
        changed[[token_id for token_id in row.banned_token_ids if token_id < len(changed)]] = -np.inf
    if params.logit_bias:
        changed[list(params.logit_bias)] += np.array(list(params.logit_bias.values()), dtype=np.float32)
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.array(row.token_ids, dtype=np.int64))
        values, penalty = changed[seen], np.float32(params.repetition_penalty)
        with np.errstate(over="ignore"):
            changed[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        output = np.array(row.token_ids[row.num_prompt_tokens :], dtype=np.int64)
        generated, counts = np.unique(output, return_counts=True)
        penalties = params.presence_penalty + params.frequency_penalty * counts
        changed[generated] -= penalties.astype(np.float32)
    return changed


def kept_tokens(logits: Row, params: SamplingParams) -> tuple[Ids | None, Row]:
    """What temperature, top-k, top-p and min-p leave.

    top-k keeps exactly k, of equal logits the lower ids. top-p keeps the fewest most likely tokens whose share of what
    top-k left reaches it. min-p keeps those at least that fraction as likely as the most likely one.

    Args:
        logits: float32 [vocab], the largest of them finite; not changed.
        params: temperature is above 0.

    Returns:
        Ascending token ids, None for the whole vocabulary, and their float32 weights: softmax's numerators, so the
        most likely token's is 1.
    """
    token_ids: Ids | None = None
    if 0 < params.top_k < len(logits):
        token_ids = np.sort(largest(logits, params.top_k))
        logits = logits[token_ids]
    weights = logits - logits.max()
    with np.errstate(over="ignore"):
        weights /= np.float32(max(params.temperature, _MIN_TEMPERATURE))
    np.exp(weights, out=weights)
    if params.top_p < 1.0:
        token_ids, weights = _take(token_ids, weights, _nucleus(weights, params.top_p))
    if params.min_p > 0.0:
        token_ids, weights = _take(token_ids, weights, np.flatnonzero(weights >= np.float32(params.min_p)))
    return token_ids, weights


def _take(token_ids: Ids | None, weights: Row, kept: Ids) -> tuple[Ids, Row]:
    return kept if token_ids is None else token_ids[kept], weights[kept]


def _nucleus(weights: Row, top_p: float) -> Ids:
    """Ascending indices of the fewest largest of weights [N] whose share of the sum reaches top_p.

    Of equal weights at the border the lower indices are kept. Source: Holtzman et al., "The Curious Case of Neural
    Text Degeneration", ICLR 2020, section 3.1. Cost: a few passes, and a sort of those that may be among the fewest.
    """
    total = float(weights.sum(dtype=np.float64))
    target = top_p * total
    # Weights below (1 - top_p) / N of the sum hold less than 1 - top_p of it together, so none of them is needed; half
    # of that, because of rounding. Where the model is confident, the likely ones alone are enough.
    floor = np.float32(0.5 * (1.0 - top_p) * total / len(weights))
    candidates = weights[np.flatnonzero(weights >= max(floor, _LIKELY))]
    if candidates.sum(dtype=np.float64) < target:
        candidates = weights[np.flatnonzero(weights >= floor)]
    ranked = np.sort(candidates)[::-1]
    num_kept = _find_share(ranked, _block_sums(ranked), target) + 1
    smallest = ranked[num_kept - 1]
    kept = np.flatnonzero(weights >= smallest)
    num_surplus = len(kept) - num_kept
    if num_surplus > 0:
        kept = np.delete(kept, np.flatnonzero(weights[kept] == smallest)[-num_surplus:])
    return kept


def _draw(token_ids: Ids | None, weights: Row, row: SamplingRow) -> int:
    """A token drawn in proportion to its weight: the winner of a race in which each arrives after an exponential time.

    Each token has its own random number, so weights that differ by rounding give the same winner, but for races as
    close as that; walking through a running sum with one number would move every border between two tokens.
    """
    running = np.flatnonzero(weights > _NEGLIGIBLE * weights.max())
    ids = running if token_ids is None else token_ids[running]
    arrivals = waiting_times(row.seed, row.sample_idx, len(row.token_ids), ids) / weights[running]
    return int(ids[arrivals.argmin()])


def _block_sums(weights: Row) -> NDArray[np.float64]:
    """Running sums over blocks of _BLOCK_LEN weights."""
    return np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK_LEN), dtype=np.float64).cumsum()


def _find_share(weights: Row, sums: NDArray[np.float64], target: float) -> int:
    """First index at which the running sum of weights [N] reaches the target.

    `sums` are the weights' block sums, so that only one block is walked through. Where rounding puts the target
    beyond the sum, it is the last index of positive weight.
    """
    block_idx = _find(sums, target)
    start = block_idx * _BLOCK_LEN
    before = float(sums[block_idx - 1]) if block_idx else 0.0
    block = weights[start : start + _BLOCK_LEN].cumsum(dtype=np.float64)
    return start + _find(block, target - before)


def _find(running: NDArray[np.float64], target: float) -> int:
    last_positive = np.searchsorted(running, running[-1])
    return int(min(np.searchsorted(running, target), last_positive))
