"""From the logprobs of whole texts to those of a select's continuations, for servers that tokenise by themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..backend import ScoreResult
from ..token_log import common_prefix_len
from .errors import BackendCallError


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A text as its model reads it: token ids, and the logprob of each; None for the first token of all."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]


def num_unaffected(prompt: ScoredRow | None, rows: Sequence[ScoredRow]) -> int:
    """How many leading tokens the prompt has alone and with every continuation. 0 without a prompt."""
    if prompt is None:
        return 0
    return min(common_prefix_len(prompt.token_ids, row.token_ids) for row in rows)


def score_result(
    rows: Sequence[ScoredRow], num_left_out: int, *, num_prompt_tokens: int, num_cached_tokens: int
) -> ScoreResult:
    """All continuations scored from the same token on, the first that one of them changes.

    Raises:
        BackendCallError: a token has no logprob that must have one.
    """
    tails = [ScoredRow(row.token_ids[num_left_out:], row.logprobs[num_left_out:]) for row in rows]
    for tail in tails:
        if None in tail.logprobs[0 if num_prompt_tokens else 1 :]:
            raise BackendCallError(
                "the server gives no logprob of a token that a choice changes: the text before a select must be longer "
                "than the token that a choice merges with; write more of it"
            )
    return ScoreResult(
        logprobs=tuple(tail.logprobs for tail in tails),
        end_logprobs=tuple(_end_logprob(tail.token_ids, tails) for tail in tails),
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=num_cached_tokens,
        token_ids=tuple(tail.token_ids for tail in tails),
    )


def _end_logprob(token_ids: tuple[int, ...], tails: Sequence[ScoredRow]) -> float:
    """As ScoreResult has it."""
    length = len(token_ids)
    going_on = {
        tail.token_ids[length]: tail.logprobs[length] or 0.0
        for tail in tails
        if len(tail.token_ids) > length and tail.token_ids[:length] == token_ids
    }
    rest = 1.0 - math.fsum(map(math.exp, going_on.values()))
    return math.log(rest) if rest > 0.0 else -math.inf
