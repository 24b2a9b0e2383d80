"""What the engine hands back: RequestOutput when a request has ended, OutputChunk while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .logprobs import Logprob


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    """End of sequence, a stop token or a stop string; `stop_reason` tells which."""
    LENGTH = "length"
    """max_tokens or the context limit."""
    ABORT = "abort"
    """Cancelled by the caller."""
    ERROR = "error"
    """Failed; `error` tells why."""
    SCORED = "scored"
    """It generates nothing: its continuations are scored."""


TokenLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One generated sample of a request.

    Attributes:
        index: which of the n samples.
        text: the text without the stop string.
        token_ids: every generated token, the stop token included.
        cumulative_logprob: sum of the tokens' logprobs; None unless they were asked for or rank the outputs.
        logprobs: one dict per token: the sampled token and the most likely ones.
        finish_reason: None while it runs.
        stop_reason: the stop string or stop token id that ended it, None for end of sequence.
        num_text_tokens: leading tokens that lie wholly inside `text`.
        leftover_text: the end of `text` that comes from a token cut by a stop string.
        has_stop_token: the last of `token_ids` is the stop token that ended it, which is no text.
        complete: of a constrained text: it satisfies the constraint. False for one that was cut off, which is then the
            beginning of a text that does. None without a constraint.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_text_tokens: int = 0
    leftover_text: str = ""
    has_stop_token: bool = False
    complete: bool | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times of a request in seconds on the monotonic clock, and what the cache saved it.

    Attributes:
        num_computed_prompt_tokens: prompt tokens that went through the model, over all samples.
        num_preemptions: times one of its sequences lost its blocks.
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_computed_prompt_tokens: int = 0
    num_preemptions: int = 0

    @property
    def time_to_schedule(self) -> float | None:
        return None if self.first_scheduled_time is None else self.first_scheduled_time - self.arrival_time

    @property
    def time_to_first_token(self) -> float | None:
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(frozen=True, slots=True)
class ContinuationLogprobs:
    """What the model says about one continuation of a request's prompt.

    Attributes:
        logprobs: of each of its tokens given all before it, under the unmodified distribution; None for the first token
            after an empty prompt.
        end_logprob: that the text does not go on here into one of the request's longer continuations: the logarithm of
            1 - the sum of p(next token) over those that it is the beginning of. 0 where it is none's beginning.
    """

    logprobs: tuple[float | None, ...]
    end_logprob: float


@dataclass(slots=True)
class RequestOutput:
    """A request and what came of it; field names are vLLM's.

    Attributes:
        num_cached_tokens: prompt tokens the first sample found in the cache.
        prompt_logprobs: one entry per prompt token if asked for; None for the first and for those not asked for.
        error: why it failed, None otherwise.
        continuations: one entry per continuation of a request that scores some, None for others and if it failed; such
            a request has no `outputs`.
        num_healed_tokens: tokens taken off the end of the prompt, whose text the generated tokens begin with (see
            Request.num_healable_tokens); `prompt_token_ids` is without them, and so is every `text`.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[TokenLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int
    error: Exception | None = None
    continuations: list[ContinuationLogprobs] | None = None
    num_healed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """What one step added to one sample.

    Attributes:
        text: new text that is safe to show: whole characters, nothing that may yet become a stop string.
        token_ids: new tokens; their text may follow in a later chunk.
        complete: as CompletionOutput.complete, on the sample's last chunk only.
        output: the whole result, on the request's last chunk only.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    complete: bool | None = None
    output: RequestOutput | None = None
