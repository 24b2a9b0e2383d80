"""Request: one frozen ask, as it was submitted."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from ..grammar_spec import GrammarSpec
from ..radix.retention import RetentionRange
from ..sampling_params import SamplingParams
from .grammar.interface import Grammar
from .request_program import RequestProgram
from .sealed_stops import SealedPart
from .stop_regex import StopRegex


class RequestFields(TypedDict, total=False):
    """What a caller may say of a request beside its prompt and sampling parameters; see Request."""

    priority: int
    cache_namespace: Hashable
    shared_prefix_len: int
    prompt_logprobs_start: int
    routing_key: str | None
    retention: Sequence[RetentionRange]
    num_healable_tokens: int
    label: str | None
    program: RequestProgram | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One ask of the engine: a prompt and how to continue it.

    Attributes:
        request_id: unique among the requests that are alive.
        prompt_token_ids: the prompt; never empty, unless there are continuations to score.
        prompt: its text, if there was one; only handed back in the output.
        arrival_time: seconds on the monotonic clock.
        priority: lower is served earlier under the `priority` policy.
        cache_namespace: requests share cached blocks only within a namespace.
        shared_prefix_len: this many leading tokens are known to be shared with sibling requests (a fork); the
            scheduler computes them once even where the gain is less than a block.
        prompt_logprobs_start: first position whose prompt logprob is wanted; earlier ones are reported as None.
        routing_key: requests with the key that most running ones have come first under the `routing-key` policy.
        retention: parts of the context that the cache should keep longer, or give up earlier, than others. Any
            sequence; kept as a tuple.
        continuations: token ids, each non-empty, whose log-probabilities after the prompt are wanted (RequestOutput has
            them as `continuations`). Such a request generates nothing and uses nothing of its sampling parameters; its
            prompt may be empty. () for a usual request.
        num_healable_tokens: this many tokens at the end of the prompt spell literal text that a constrained generation
            may begin again, so that one of its tokens can span the boundary. 0 keeps the prompt as it is.
        label: what it is called where people look, such as the variable of a program that it is for; see `LLM.trace`.
        program: which run of which program it comes from, for the `program` policy and for keeping what programs will
            use again; None for a request that stands alone. Tell the engine when the run is over: LLM.end_program.
        is_prompt_only: the prompt is brought into the cache, and scored if asked for; the one token that is generated
            counts for nothing.
        constraint: what the text must be, in place of what sampling_params say of it; such as a text with tool calls.
        sealed: parts of the text that no stop string or regex cuts, such as tool calls.
        closes: a constrained text is steered so that it is complete within max_tokens, as with on_incomplete="close",
            if any fits in there; a longer one is cut off. Stop strings may cut it off all the same.
        grammar: the compiled constraint; set where the request is submitted.
        stop_regexes: the compiled ones of sampling_params; set where the request is submitted.
        healed_text, num_healed_tokens: what was taken off the end of the prompt and is part of the grammar instead.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    prompt: str | None = None
    arrival_time: float = field(default_factory=time.monotonic)
    priority: int = 0
    cache_namespace: Hashable = None
    shared_prefix_len: int = 0
    prompt_logprobs_start: int = 0
    routing_key: str | None = None
    retention: Sequence[RetentionRange] = ()
    continuations: tuple[tuple[int, ...], ...] = ()
    num_healable_tokens: int = 0
    label: str | None = field(default=None, compare=False)
    program: RequestProgram | None = field(default=None, compare=False)
    is_prompt_only: bool = False
    constraint: GrammarSpec | None = None
    sealed: SealedPart | None = None
    closes: bool = False
    grammar: Grammar | None = field(default=None, compare=False, repr=False)
    stop_regexes: tuple[StopRegex, ...] = field(default=(), compare=False, repr=False)
    healed_text: str = ""
    num_healed_tokens: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.retention, Sequence):  # anything else is refused where it is submitted
            object.__setattr__(self, "retention", tuple(self.retention))
