"""Sampler: from a step's logits to one token per sequence.

Each row is worked on by itself, in the order: allowed tokens, logit_bias, penalties, temperature, top-k, top-p, min-p.
The draw inverts the cumulative distribution of the kept tokens in order of their ids, in float64, at a number that
depends on (seed, sample index, position) only. So a row's token depends on nothing else in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..sampling_params import SamplingParams
from .logprobs import Ids, Logprob, Row, largest, row_logprobs, to_numpy
from .random_stream import uniform

Weights = NDArray[np.float64]

_NUCLEUS_SIZES = (64, 1024)
"""How many of the largest weights are looked at first; a nucleus that is larger needs a sort of them all."""

_DRAW_BLOCK = 256


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What the sampler has to know of one sequence.

    Attributes:
        token_ids: prompt and output so far; the new token's position is their number.
        num_prompt_tokens: how many of them are the prompt.
        banned_token_ids: never chosen here, such as end-of-sequence tokens before min_tokens.
        allowed: bool [vocab], the tokens a grammar allows; None allows all.
    """

    params: SamplingParams
    seed: int
    sample_idx: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    banned_token_ids: Collection[int] = ()
    allowed: Tensor | None = None


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One row's result.

    Attributes:
        token_id: -1 if there is an error.
        logprobs: of this token and the most likely ones, if the row asked for them.
        error: why nothing could be sampled; the other rows are unaffected.
    """

    token_id: int
    logprobs: dict[int, Logprob] | None = None
    error: str | None = None


class Sampler:
    """Chooses the next token of every row. Has no state."""

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """One token per row.

        Args:
            logits: fp32 [rows, vocab]; not changed.
            rows: one per row of logits.

        Rows are worked on one by one in one thread: at the size of a vocabulary that is faster than starting threads,
        and the order of every sum is fixed. Cost: one pass over the logits; for each row that is not plainly greedy a
        few passes over that row. All weights are sorted only where a nucleus has more than 1,024 tokens.
        """
        assert logits.shape[0] == len(rows)
        if not rows:
            return []
        values = to_numpy(logits)
        best_ids = values.argmax(axis=-1).tolist()
        return [_sample_row(values[idx], row, best_ids[idx]) for idx, row in enumerate(rows)]


def _sample_row(logits: Row, row: SamplingRow, best_id: int) -> SampledToken:
    best = float(logits[best_id])
    if not math.isfinite(best):
        return SampledToken(-1, error=f"the model's logits are not finite: the largest is {best}")
    params = row.params
    if params.is_greedy and not _changes_logits(row):
        return _with_logprobs(logits, best_id, params)
    unknown_id = _first_unknown_id(row, logits.shape[0])
    if unknown_id is not None:
        message = f"logit_bias names token {unknown_id}, but the model has only {logits.shape[0]} tokens"
        return SampledToken(-1, error=message)
    changed = change_logits(logits, row)
    if not math.isfinite(float(changed.max())):
        return SampledToken(-1, error="no token is left to sample: all are banned or not allowed here")
    if params.is_greedy:
        return _with_logprobs(logits, int(changed.argmax()), params)
    token_ids, weights = kept_tokens(changed, params)
    idx = _draw(weights, uniform(row.seed, row.sample_idx, len(row.token_ids)))
    return _with_logprobs(logits, idx if token_ids is None else int(token_ids[idx]), params)


def _with_logprobs(logits: Row, token_id: int, params: SamplingParams) -> SampledToken:
    if params.logprobs is None:
        return SampledToken(token_id)
    return SampledToken(token_id, row_logprobs(logits, token_id, params.logprobs))


def change_logits(logits: Row, row: SamplingRow) -> Row:
    """The logits after allowed tokens, bans, logit_bias and penalties.

    Args:
        logits: float32 [vocab]; not changed.

    Returns:
        float32 [vocab]; -inf for tokens that must not be sampled. The same array if nothing is to be changed.
    """
    if not _changes_logits(row):
        return logits
    params = row.params
    changed = logits.copy()
    if row.allowed is not None:
        changed[~row.allowed.cpu().numpy()] = -np.inf
    changed[[token_id for token_id in row.banned_token_ids if token_id < changed.shape[0]]] = -np.inf
    if params.logit_bias:
        changed[list(params.logit_bias)] += np.array(list(params.logit_bias.values()), dtype=np.float32)
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.array(row.token_ids, dtype=np.int64))
        values, penalty = changed[seen], np.float32(params.repetition_penalty)
        changed[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        output = np.array(row.token_ids[row.num_prompt_tokens :], dtype=np.int64)
        generated, counts = np.unique(output, return_counts=True)
        penalties = params.presence_penalty + params.frequency_penalty * counts
        changed[generated] -= penalties.astype(np.float32)
    return changed


def kept_tokens(logits: Row, params: SamplingParams) -> tuple[Ids | None, Weights]:
    """The tokens that temperature, top-k, top-p and min-p leave, in order of their ids, and their weights.

    top-k keeps exactly k, of equal logits the lower ids. top-p keeps the fewest most likely tokens whose share of what
    top-k left reaches it (Holtzman et al., "The curious case of neural text degeneration", ICLR 2020). min-p keeps
    those at least that fraction as likely as the most likely one.

    Args:
        logits: float32 [vocab], at least one of them finite.
        params: temperature is above 0.

    Returns:
        Ids [kept], ascending, None for all; weights [kept], the largest of them 1, some may be 0.
    """
    token_ids: Ids | None = None
    if 0 < params.top_k < logits.shape[0]:
        token_ids = largest(logits, params.top_k)
    chosen = logits if token_ids is None else logits[token_ids]
    weights = np.exp((chosen.astype(np.float64) - float(logits.max())) / params.temperature)
    if params.top_p < 1.0:
        order = _nucleus(weights, params.top_p)
        token_ids = order if token_ids is None else token_ids[order]
        weights = weights[order]
    if params.min_p > 0.0:
        passing = np.flatnonzero(weights >= params.min_p)
        token_ids = passing if token_ids is None else token_ids[passing]
        weights = weights[passing]
    if token_ids is None:
        return None, weights
    by_id = np.argsort(token_ids)
    return token_ids[by_id], weights[by_id]


def _nucleus(weights: Weights, top_p: float) -> Ids:
    """Indices, ascending, of the fewest largest weights whose share of all reaches top_p; of equal ones the first."""
    size = weights.shape[0]
    target = top_p * float(weights.sum())
    for count in (*_NUCLEUS_SIZES, size):
        head = np.partition(weights, size - count)[size - count :] if count < size else weights
        descending = np.sort(head)[::-1]
        cumulative = descending.cumsum()
        if count >= size or cumulative[-1] >= target:
            break
    num_kept = min(1 + int(np.searchsorted(cumulative, target)), size)
    smallest = descending[num_kept - 1]
    above = np.flatnonzero(weights > smallest)
    equal = np.flatnonzero(weights == smallest)[: num_kept - above.shape[0]]
    return np.sort(np.concatenate([above, equal]))


def _draw(weights: Weights, number: float) -> int:
    """Index of the weight in which `number` of the way through their sum falls; one of weight 0 is never drawn.

    Blocks of weights are summed first, so that only one block is walked through.
    """
    blocks = np.add.reduceat(weights, np.arange(0, weights.shape[0], _DRAW_BLOCK)).cumsum()
    target = number * float(blocks[-1])
    block = _first_above(blocks, target)
    start = block * _DRAW_BLOCK
    before = float(blocks[block - 1]) if block else 0.0
    return start + _first_above(weights[start : start + _DRAW_BLOCK].cumsum(), target - before)


def _first_above(cumulative: Weights, target: float) -> int:
    """The first index whose cumulative weight exceeds the target, or, if rounding leaves none, where it last grew."""
    idx = int(np.searchsorted(cumulative, target, side="right"))
    return idx if idx < cumulative.shape[0] else int(np.searchsorted(cumulative, cumulative[-1]))


def _changes_logits(row: SamplingRow) -> bool:
    params = row.params
    has_penalty = params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    return has_penalty or bool(params.logit_bias) or bool(row.banned_token_ids) or row.allowed is not None


def _first_unknown_id(row: SamplingRow, num_tokens: int) -> int | None:
    bias = row.params.logit_bias or {}
    return next((token_id for token_id in bias if token_id >= num_tokens), None)
