"""The border of the engine: a request is refused here, with the reason, or it can be served."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..radix.retention import RetentionRange
from ..sampling_params import SamplingParams
from .errors import ContextLimitError, InvalidRequestError
from .request import Request
from .request_program import RequestProgram


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may ask of an engine.

    Attributes:
        vocab_size: token ids lie in [0, vocab_size).
        max_model_len: longest context, prompt and output together.
        num_slots: token slots in the whole pool.
        block_size: token slots in a block of it.
        is_sharing: sequences share cached blocks. Without it, beams that lost theirs each compute the prompt for
            themselves.
        max_num_seqs: most sequences that can run at once.
        max_num_batched_tokens: longest prompt where prompts are not chunked, None where they are.
    """

    vocab_size: int
    max_model_len: int
    num_slots: int
    block_size: int
    is_sharing: bool
    max_num_seqs: int
    max_num_batched_tokens: int | None = None

    @property
    def max_context_len(self) -> int:
        return min(self.max_model_len, self.num_slots)

    def max_tokens(self, request: Request) -> int:
        """Most tokens the request may generate, with "as many as fit" resolved; the longest of its continuations."""
        if request.continuations:
            return max(map(len, request.continuations))
        params = request.sampling_params
        if params.max_tokens is not None:
            return params.max_tokens + request.num_healed_tokens  # those are the prompt's, generated once more
        prompt_len = len(request.prompt_token_ids)
        if params.use_beam_search:
            return min(self.max_model_len - prompt_len, self.max_beam_tokens(prompt_len, params.beam_width))
        return self.max_context_len - prompt_len

    def max_beam_tokens(self, prompt_len: int, beam_width: int) -> int:
        """Most tokens that beams which share no more than the prompt's full blocks can generate in the whole pool."""
        num_shared_blocks = prompt_len // self.block_size if self.is_sharing else 0
        num_blocks = self.num_slots // self.block_size - num_shared_blocks
        return num_blocks // beam_width * self.block_size - (prompt_len - num_shared_blocks * self.block_size)


def check_request(request: Request, limits: RequestLimits) -> None:
    """Check a request against an engine's limits. Cost: O(prompt).

    Raises:
        InvalidRequestError: malformed, or it could never be served even by an idle engine.
    """
    if not isinstance(request, Request) or not isinstance(request.request_id, str):
        raise InvalidRequestError(f"a request must be a Request with a string as its id, not {request!r}")
    if not isinstance(request.sampling_params, SamplingParams):
        raise InvalidRequestError(f"sampling_params must be a SamplingParams, not {request.sampling_params!r}")
    if not request.prompt_token_ids and not request.continuations:
        raise InvalidRequestError("the prompt is empty: it must have at least one token", field="prompt")
    params = request.sampling_params
    _check_token_ids("prompt_token_ids", request.prompt_token_ids, limits.vocab_size)
    _check_token_ids("stop_token_ids", params.stop_ids, limits.vocab_size)
    _check_token_ids("logit_bias", params.logit_bias or (), limits.vocab_size)
    if request.continuations != ():
        _check_continuations(request, limits)
    _check_lengths(request, limits)
    if params.use_beam_search:
        _check_beams(request, limits)
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
    most = limits.max_tokens(request)
    if request.continuations:
        max_tokens, shorter, field = most, "shorten the continuations", "continuations"
        what = f"prompt of {prompt_len} tokens plus a continuation of {most}"
        what_most = what
    else:
        max_tokens, shorter, field = request.sampling_params.max_tokens or 1, "lower max_tokens", "max_tokens"
        what = f"prompt of {prompt_len} tokens plus max_tokens={max_tokens}"
        what_most = f"prompt of {prompt_len} tokens plus max_tokens={most}"
    if prompt_len + max_tokens > limits.max_model_len:
        is_prompt_alone = prompt_len >= limits.max_model_len and not request.continuations
        if is_prompt_alone:
            what = f"prompt of {prompt_len} tokens"
        exceeded = "leaves no room in" if is_prompt_alone and prompt_len == limits.max_model_len else "exceeds"
        raise ContextLimitError(
            f"{what} {exceeded} the context limit of {limits.max_model_len} tokens: shorten the prompt"
            f"{'' if is_prompt_alone else f' or {shorter}'}",
            field="prompt" if prompt_len >= limits.max_model_len else field,
        )
    if prompt_len + max_tokens > limits.num_slots:
        raise InvalidRequestError(
            f"{what} can never fit in the KV cache of {limits.num_slots} tokens: raise kv_cache_memory or num_blocks, "
            f"or {shorter}",
            field="prompt" if prompt_len >= limits.num_slots else field,
        )
    if limits.max_num_batched_tokens is not None and most + prompt_len - 1 > limits.max_num_batched_tokens:
        # A preempted sequence recomputes prompt and output in one piece, so both count.
        raise InvalidRequestError(
            f"{what_most} exceeds max_num_batched_tokens={limits.max_num_batched_tokens} and enable_chunked_prefill "
            "is off: turn it on or raise max_num_batched_tokens"
        )


def _check_continuations(request: Request, limits: RequestLimits) -> None:
    if not isinstance(request.continuations, tuple) or any(
        not isinstance(token_ids, tuple) or not token_ids for token_ids in request.continuations
    ):
        raise InvalidRequestError(
            f"continuations={request.continuations!r} must be a tuple of non-empty tuples of token ids"
        )
    for idx, token_ids in enumerate(request.continuations):
        _check_token_ids(f"continuations[{idx}]", token_ids, limits.vocab_size)
    params = request.sampling_params
    for name, value, neutral in (
        ("n", params.num_sequences, 1),
        ("use_beam_search", params.use_beam_search, False),
        ("prompt_logprobs", params.prompt_logprobs, None),
        ("a constraint", params.grammar_spec, None),
    ):
        if value != neutral:
            raise InvalidRequestError(
                f"{name}={value!r} does not go with continuations: such a request scores them and generates nothing"
            )


def _check_beams(request: Request, limits: RequestLimits) -> None:
    params, prompt_len = request.sampling_params, len(request.prompt_token_ids)
    if params.beam_width > limits.max_num_seqs:
        raise InvalidRequestError(
            f"a beam search of width {params.beam_width} needs as many sequences in one step, and this engine runs "
            f"{limits.max_num_seqs} at most: lower best_of, or raise max_num_seqs (and max_num_batched_tokens)"
        )
    most = limits.max_beam_tokens(prompt_len, params.beam_width)
    if limits.max_tokens(request) > most or most < 1:
        raise InvalidRequestError(
            f"{params.beam_width} beams of up to {limits.max_tokens(request)} tokens behind a prompt of {prompt_len} "
            f"can never fit in the KV cache of {limits.num_slots} tokens: raise kv_cache_memory or num_blocks, or "
            "lower best_of or max_tokens"
        )


def _check_fields(request: Request) -> None:
    prompt_len = len(request.prompt_token_ids)
    for name, value in (
        ("prompt_logprobs_start", request.prompt_logprobs_start),
        ("shared_prefix_len", request.shared_prefix_len),
        ("num_healable_tokens", request.num_healable_tokens),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= prompt_len:
            raise InvalidRequestError(f"{name}={value!r} must be an integer in [0, {prompt_len}] (the prompt's length)")
    if isinstance(request.priority, bool) or not isinstance(request.priority, int):
        raise InvalidRequestError(f"priority={request.priority!r} must be an integer; lower is served earlier")
    if request.routing_key is not None and not isinstance(request.routing_key, str):
        raise InvalidRequestError(f"routing_key={request.routing_key!r} must be a string or None")
    if request.label is not None and not isinstance(request.label, str):
        raise InvalidRequestError(f"label={request.label!r} must be a string or None")
    _check_program(request.program)
    if not isinstance(request.retention, tuple) or any(
        not isinstance(part, RetentionRange) for part in request.retention
    ):
        raise InvalidRequestError(f"retention={request.retention!r} must be a list or tuple of RetentionRange")
    try:
        hash(request.cache_namespace)
    except TypeError as error:
        raise InvalidRequestError(f"cache_namespace={request.cache_namespace!r} must be hashable: {error}") from error


def _check_program(program: object) -> None:
    if program is None:
        return
    if not isinstance(program, RequestProgram) or not isinstance(program.name, str):
        raise InvalidRequestError(f"program={program!r} must be a RequestProgram, whose name is a string, or None")
    if not isinstance(program.branch, tuple) or any(type(idx) is not int or idx < 0 for idx in program.branch):
        raise InvalidRequestError(f"program.branch={program.branch!r} must be a tuple of branch indices from 0 on")
    try:
        hash(program.run_id)
    except TypeError as error:
        raise InvalidRequestError(f"program.run_id={program.run_id!r} must be hashable: {error}") from error
