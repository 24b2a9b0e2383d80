"""The border of the engine: a request is refused here, with the reason, or it can be served."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..sampling_params import SamplingParams
from .errors import InvalidRequestError
from .request import Request


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may ask of an engine.

    Attributes:
        vocab_size: token ids lie in [0, vocab_size).
        max_model_len: longest context, prompt and output together.
        num_slots: token slots in the whole pool.
        max_num_batched_tokens: longest prompt where prompts are not chunked, None where they are.
    """

    vocab_size: int
    max_model_len: int
    num_slots: int
    max_num_batched_tokens: int | None = None

    @property
    def max_context_len(self) -> int:
        return min(self.max_model_len, self.num_slots)

    def max_tokens(self, request: Request) -> int:
        """Most tokens the request may generate, with "as many as fit" resolved."""
        if request.sampling_params.max_tokens is not None:
            return request.sampling_params.max_tokens
        return self.max_context_len - len(request.prompt_token_ids)


def check_request(request: Request, limits: RequestLimits) -> None:
    """Check a request against an engine's limits. Cost: O(prompt).

    Raises:
        InvalidRequestError: malformed, or it could never be served even by an idle engine.
    """
    if not isinstance(request, Request) or not isinstance(request.request_id, str):
        raise InvalidRequestError(f"a request must be a Request with a string as its id, not {request!r}")
    if not isinstance(request.sampling_params, SamplingParams):
        raise InvalidRequestError(f"sampling_params must be a SamplingParams, not {request.sampling_params!r}")
    if not request.prompt_token_ids:
        raise InvalidRequestError("the prompt is empty: it must have at least one token")
    params = request.sampling_params
    _check_token_ids("prompt_token_ids", request.prompt_token_ids, limits.vocab_size)
    _check_token_ids("stop_token_ids", params.stop_ids, limits.vocab_size)
    _check_token_ids("logit_bias", params.logit_bias or (), limits.vocab_size)
    _check_lengths(request, limits)
    _check_fields(request)


def _check_token_ids(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for position, token_id in enumerate(token_ids):
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{name} has {token_id!r} at position {position}: token ids of this model are integers "
                f"from 0 to {vocab_size - 1}"
            )


def _check_lengths(request: Request, limits: RequestLimits) -> None:
    prompt_len = len(request.prompt_token_ids)
    max_tokens = request.sampling_params.max_tokens or 1
    if prompt_len + max_tokens > limits.max_model_len:
        raise InvalidRequestError(
            f"prompt of {prompt_len} tokens plus max_tokens={max_tokens} exceeds the context limit of "
            f"{limits.max_model_len} tokens: shorten the prompt or lower max_tokens"
        )
    if prompt_len + max_tokens > limits.num_slots:
        raise InvalidRequestError(
            f"prompt of {prompt_len} tokens plus max_tokens={max_tokens} can never fit in the KV cache of "
            f"{limits.num_slots} tokens: raise kv_cache_memory or num_blocks, or lower max_tokens"
        )
    if limits.max_num_batched_tokens is not None and limits.max_tokens(request) + prompt_len - 1 > (
        limits.max_num_batched_tokens
    ):
        # A preempted sequence recomputes prompt and output in one piece, so both count.
        raise InvalidRequestError(
            f"prompt of {prompt_len} tokens plus max_tokens={limits.max_tokens(request)} exceeds "
            f"max_num_batched_tokens={limits.max_num_batched_tokens} and enable_chunked_prefill is off: "
            "turn it on or raise max_num_batched_tokens"
        )


def _check_fields(request: Request) -> None:
    prompt_len = len(request.prompt_token_ids)
    for name, value in (
        ("prompt_logprobs_start", request.prompt_logprobs_start),
        ("shared_prefix_len", request.shared_prefix_len),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= prompt_len:
            raise InvalidRequestError(f"{name}={value!r} must be an integer in [0, {prompt_len}] (the prompt's length)")
    if isinstance(request.priority, bool) or not isinstance(request.priority, int):
        raise InvalidRequestError(f"priority={request.priority!r} must be an integer; lower is served earlier")
    try:
        hash(request.cache_namespace)
    except TypeError as error:
        raise InvalidRequestError(f"cache_namespace={request.cache_namespace!r} must be hashable: {error}") from error
