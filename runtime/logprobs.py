"""Logprobs of tokens under the model's own distribution, before temperature, penalties and filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ROWS_PER_SLICE = 64

Row = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's logprob at one position; field names are vLLM's.

    Attributes:
        logprob: natural logarithm of its probability.
        rank: 1 for the most likely token; of equally likely ones the lower id ranks first.
        decoded_token: its text, None where nobody asked for it.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None


def logprobs_of(logits: Tensor, token_ids: Sequence[int], top_n: int) -> list[dict[int, Logprob]]:
    """For each row, the logprobs of its own token and of the `top_n` most likely ones.

    Args:
        logits: fp32 [rows, vocab], as the model made them.
        token_ids: one per row.
        top_n: at least 0; more than the vocabulary counts as all of it.

    Returns:
        One dict per row: its own token first, then the most likely ones in order.

    A row's result depends on that row alone, to the last bit: rows are computed in float64, one by one, in one thread.
    A token has the same float whether it is listed as the row's own or among the most likely. A row with NaN gives NaN.
    Cost: one exponential per logit and, with top_n, a selection over the vocabulary; memory for a few rows.
    """
    assert logits.ndim == 2
    assert logits.shape[0] == len(token_ids)
    results: list[dict[int, Logprob]] = []
    for start in range(0, len(token_ids), ROWS_PER_SLICE):
        rows = to_numpy(logits[start : start + ROWS_PER_SLICE])
        ids = token_ids[start : start + ROWS_PER_SLICE]
        results += [row_logprobs(row, token_id, top_n) for row, token_id in zip(rows, ids, strict=True)]
    return results


def row_logprobs(row: Row, token_id: int, top_n: int) -> dict[int, Logprob]:
    """`logprobs_of` for one row, float32 [vocab]."""
    log_total = _log_total(row)
    own = row[token_id]
    num_before = np.count_nonzero(row > own) + np.count_nonzero(row[:token_id] == own)
    listed = {token_id: Logprob(float(own) - log_total, int(num_before) + 1)}
    if top_n:
        for idx, top_id in enumerate(largest(row, top_n).tolist()):
            listed.setdefault(top_id, Logprob(float(row[top_id]) - log_total, idx + 1))
    return listed


def token_logprobs_of(logits: Tensor, row_indices: Sequence[int], token_ids: Sequence[int]) -> list[float]:
    """The logprob of each token in the row of logits, fp32 [rows, vocab], that is named with it; the same floats that
    `logprobs_of` lists. Cost: one exponential per logit whenever another row is named than just before."""
    results: list[float] = []
    row_idx = -1
    for idx, token_id in zip(row_indices, token_ids, strict=True):
        if idx != row_idx:
            row_idx, row = idx, to_numpy(logits[idx])
            log_total = _log_total(row)
        results.append(float(row[token_id]) - log_total)
    return results


def _log_total(row: Row) -> float:
    """The logarithm of the sum of e to the power of every logit, float32 [vocab]."""
    peak = float(row.max())
    with np.errstate(invalid="ignore"):  # a row of infinities has no logprobs: they come out as NaN
        return peak + float(np.log(np.exp(row.astype(np.float64) - peak).sum()))


def to_numpy(logits: Tensor) -> Row:
    """The fp32 logits as an array; the same memory where they are on the CPU already."""
    assert logits.dtype == torch.float32
    rows: Row = logits.detach().cpu().numpy()
    return rows


def largest(values: NDArray[np.floating], count: int) -> Ids:
    """Indices of the largest values, in descending order; of equal values the lower index comes first.

    Args:
        values: [vocab].
        count: at least 1; more than there are counts as all.

    Returns:
        [min(count, vocab)]; fewer if there are NaNs. Cost: linear in the vocabulary; only what is returned is sorted.
    """
    assert count > 0
    if count >= values.shape[0]:
        return np.argsort(-values, kind="stable")
    smallest = np.partition(values, values.shape[0] - count)[values.shape[0] - count]
    above = np.flatnonzero(values > smallest)
    equal = np.flatnonzero(values == smallest)[: count - above.shape[0]]
    return np.concatenate([above[np.argsort(-values[above], kind="stable")], equal])
