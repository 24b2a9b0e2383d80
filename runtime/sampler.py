"""Sampler: from a step's logits to one token per sequence; what every implementation is given and must promise.

A row is changed and cut in this order: allowed tokens and bans, logit_bias, penalties, temperature, top-k, top-p,
min-p. What is left runs a race whose random numbers depend on (seed, sample index, position, token) only. So a row's
token depends on nothing else in the batch. `sampler_numpy.py` is the plain implementation, `sampler_native.py` the fast
one. They draw the same tokens, but for races and shares as close as the rounding of an exponential.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..sampling_params import SamplingParams
from .outputs import TokenLogprobs

NOT_FINITE = "the model's logits are not finite"


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What the sampler has to know of one sequence.

    Attributes:
        seed: in [0, 2**64).
        token_ids: prompt and output so far; the new token's position is their number.
        num_prompt_tokens: how many of them are the prompt.
        banned_token_ids: never chosen here, such as end-of-sequence tokens before min_tokens; ids that the model does
            not have are ignored.
        allowed: the tokens a grammar allows, None for all: bool [vocab], or int32 [ceil(vocab / 32)] where token i is
            bit i % 32 of word i // 32.
    """

    params: SamplingParams
    seed: int
    sample_idx: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    banned_token_ids: frozenset[int] = frozenset()
    allowed: Tensor | None = None

    @property
    def changes_logits(self) -> bool:
        """Whether anything changes the logits before temperature."""
        return (
            self.allowed is not None
            or bool(self.banned_token_ids)
            or bool(self.params.logit_bias)
            or self.params.repetition_penalty != 1.0
            or self.params.presence_penalty != 0.0
            or self.params.frequency_penalty != 0.0
        )


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One row's result.

    Attributes:
        token_id: -1 if there is an error.
        logprobs: of this token and the most likely ones, if the row asked for them; of the unmodified distribution.
        error: why nothing could be sampled; the other rows are unaffected.
        cause: what was raised for this row alone, if that is why.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None
    cause: Exception | None = None


class Draw(Protocol):
    """Tokens that are being chosen."""

    @property
    def token_ids(self) -> Tensor:
        """int64 [S], where the logits are; a kernel that is launched now finds them there, the host may not. A row with
        an error has any token of the vocabulary."""
        ...

    def finish(self) -> list[SampledToken]:
        """Wait for the results: what `Sampler.sample` returns. To be called once."""
        ...


@dataclass(frozen=True, slots=True)
class FinishedDraw:
    """The draw of a sampler that chooses at once."""

    token_ids: Tensor
    results: list[SampledToken]

    def finish(self) -> list[SampledToken]:
        """See `Draw.finish`."""
        return self.results


class Sampler(Protocol):
    """Chooses the next token of every row. Has no state that a result could depend on."""

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        """One token per row.

        Args:
            logits: fp32 [S, vocab] on any device; not changed.
            rows: one per row of logits.

        Returns:
            One result per row, in order. A row with NaN or +inf among its logits, or with no token left to sample, has
            an error.
        """
        ...

    def begin(self, logits: Tensor, rows: Sequence[SamplingRow], row_indices: Sequence[int]) -> Draw:
        """Set `sample` going, without waiting for a device.

        Args:
            logits: fp32 [R, vocab], which may still be being computed. Not changed, now or later.
            rows: read here; what they name may change afterwards.
            row_indices: which row of the logits each is for. If there are none, the draw is just done after what was
                launched before.
        """
        ...

    def logprobs(self, logits: Tensor, token_ids: Sequence[int], top_n: int) -> list[TokenLogprobs]:
        """For each row of logits [R, vocab], the logprobs of its own token and of the `top_n` most likely ones.

        What `logprobs.logprobs_of` promises holds here too; a listing may differ from its in the last bits.
        """
        ...

    def token_logprobs(self, logits: Tensor, row_indices: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """The logprob of each token in the row of logits [R, vocab] that is named with it: the same floats that
        `logprobs` has for them. Rows may be named several times, best one after another."""
        ...


def draw_now(sampler: Sampler, logits: Tensor, rows: Sequence[SamplingRow], row_indices: Sequence[int]) -> FinishedDraw:
    """`Sampler.begin` of one that does not leave the work to a device."""
    results = sampler.sample(logits[list(row_indices)], rows) if rows else []
    token_ids = [max(0, result.token_id) for result in results]
    return FinishedDraw(torch.tensor(token_ids, dtype=torch.int64, device=logits.device), results)


def allowed_mask(allowed: Tensor, vocab_size: int) -> NDArray[np.bool_]:
    """`SamplingRow.allowed` as one truth value per token."""
    values = allowed.cpu().numpy()
    if allowed.dtype == torch.bool:
        assert values.shape == (vocab_size,)
        mask: NDArray[np.bool_] = values
        return mask
    assert allowed.dtype == torch.int32
    assert values.shape == (-(-vocab_size // 32),)
    return np.unpackbits(values.astype("<i4").view(np.uint8), bitorder="little")[:vocab_size].astype(np.bool_)


def not_finite(peak: float) -> str:
    """Why a row whose largest logit is `peak` cannot be sampled."""
    return f"{NOT_FINITE}: the largest is {peak}"


def nothing_left(row: SamplingRow, vocab_size: int) -> str:
    """Why a row has no token that could be chosen."""
    causes = []
    if row.allowed is not None:
        num_allowed = np.count_nonzero(allowed_mask(row.allowed, vocab_size))
        causes.append(f"the grammar allows {num_allowed} of {vocab_size} tokens")
    if row.banned_token_ids:
        causes.append(f"{len(row.banned_token_ids)} are banned before min_tokens={row.params.min_tokens} is reached")
    causes.append("the others have a logit of -inf")
    return f"no token is left to sample: {', '.join(causes)}"


def out_of_range(row: SamplingRow) -> str:
    """Why a row's penalties make it impossible to sample."""
    return f"repetition_penalty={row.params.repetition_penalty} takes a logit out of the range of fp32"
