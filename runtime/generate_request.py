"""What SGLang's `generate` is asked with, checked and made into requests. The offline engine and a server share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..native_params import NativeParams, from_native
from ..sampling_params import MAX_LOGPROBS
from ..suggestions import did_you_mean
from .errors import InvalidRequestError
from .prompts import Prompt, tokenize_prompt
from .request import Request
from .sglang_format import LogprobOptions
from .tokenizer import Tokenizer

T = TypeVar("T")

_KNOWN = (
    "prompt",
    "sampling_params",
    "input_ids",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
    "stream",
)
UNSUPPORTED: Mapping[str, str] = {
    "image_data": "text only",
    "audio_data": "text only",
    "video_data": "text only",
    "input_embeds": "give input_ids",
    "token_ids_logprob": "use top_logprobs_num, or LLM.score",
    "lora_path": "there are no adapters",
    "custom_logit_processor": "use logit_bias",
    "return_hidden_states": "there are none to be had",
    "return_routed_experts": "there are none to be had",
    "require_reasoning": "use separate_reasoning in a program",
    "rid": "an answer has an id of its own",
    "priority": "use LLM.generate(..., priority=...)",
    "cache_salt": "use LLM.generate(..., cache_namespace=...)",
    "routed_dp_rank": "there is one engine",
    "data_parallel_rank": "there is one engine",
    "session_id": "the prefix cache keeps what a conversation has said",
    "session_params": "the prefix cache keeps what a conversation has said",
}


@dataclass(frozen=True, slots=True)
class AskedText:
    """One prompt of a `generate`, ready to be submitted, and how its answer is to look."""

    request: Request
    native: NativeParams
    logprobs: LogprobOptions


@dataclass(frozen=True, slots=True)
class GenerateAsk:
    """A whole `generate`: `is_single` says whether one answer is wanted or a list of them."""

    items: tuple[AskedText, ...]
    is_single: bool


def read_generate(
    tokenizer: Tokenizer,
    new_request_id: Callable[[], str],
    *,
    prompt: str | Sequence[str] | None,
    input_ids: Sequence[int] | Sequence[Sequence[int]] | None,
    sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    return_logprob: bool | Sequence[bool],
    logprob_start_len: int | Sequence[int],
    top_logprobs_num: int | Sequence[int],
    return_text_in_logprobs: bool,
    others: Mapping[str, Any],
    prompt_name: str = "prompt",
    before_each: Callable[[], None] | None = None,
) -> GenerateAsk:
    """
    Args:
        others: further arguments, which are refused unless they ask for nothing.
        prompt_name: what `prompt` is called where it was asked for.
        before_each: called before each prompt is read; what it raises ends the reading.

    Raises:
        InvalidRequestError: the prompts are malformed, a list has not one entry per prompt, or an argument is unknown.
        InvalidSamplingParamsError: a sampling parameter is.
    """
    _refuse(others)
    check_flag("return_text_in_logprobs", return_text_in_logprobs)
    prompts, is_single = _prompts(prompt, input_ids, prompt_name)
    count = len(prompts)
    params = one_each("sampling_params", sampling_params, count, Mapping | None)
    wanted = one_each("return_logprob", return_logprob, count, bool)
    starts = one_each("logprob_start_len", logprob_start_len, count, int)
    tops = one_each("top_logprobs_num", top_logprobs_num, count, int)
    items = []
    for idx in range(count):
        if before_each is not None:
            before_each()
        text, token_ids = _tokenized(prompts[idx], tokenizer, None if is_single else idx)
        options = _logprob_options(
            wanted[idx], starts[idx], tops[idx], len(token_ids), has_text=return_text_in_logprobs
        )
        native = from_native(params[idx])
        items.append(AskedText(_request(new_request_id(), text, token_ids, native, options), native, options))
    return GenerateAsk(tuple(items), is_single)


def check_flag(name: str, value: object) -> None:
    """
    Raises:
        InvalidRequestError: it is neither True nor False.
    """
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name}={value!r:.80} is not allowed: it must be True or False")


def _tokenized(prompt: Prompt, tokenizer: Tokenizer, idx: int | None) -> tuple[str | None, tuple[int, ...]]:
    if idx is None:
        return tokenize_prompt(prompt, tokenizer)
    try:
        return tokenize_prompt(prompt, tokenizer)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"prompt {idx}: {error}", field=error.field) from error


def _request(
    request_id: str, text: str | None, token_ids: tuple[int, ...], native: NativeParams, options: LogprobOptions
) -> Request:
    sampling = native.sampling
    start_len = 0
    if options.is_wanted:
        sampling = sampling.replace(logprobs=options.num_top)
        if options.start_len >= 0:
            sampling = sampling.replace(prompt_logprobs=options.num_top)
            start_len = options.start_len
    return Request(
        request_id=request_id,
        prompt=text,
        prompt_token_ids=token_ids,
        sampling_params=sampling,
        prompt_logprobs_start=start_len,
        is_prompt_only=native.is_prefill_only,
    )


def _refuse(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name in UNSUPPORTED:
            if value is None or value is False:
                continue
            raise InvalidRequestError(f"{name} is not supported: {UNSUPPORTED[name]}", field=name)
        raise InvalidRequestError(f"generate has no {name!r}{did_you_mean(name, _KNOWN)} it takes {', '.join(_KNOWN)}")


def _prompts(
    prompt: str | Sequence[str] | None, input_ids: Sequence[int] | Sequence[Sequence[int]] | None, name: str
) -> tuple[list[Prompt], bool]:
    if (prompt is None) == (input_ids is None):
        raise InvalidRequestError(f"give either {name} or input_ids", field=name)
    if isinstance(prompt, str):
        return [prompt], True
    if prompt is not None:
        texts = list(prompt) if isinstance(prompt, Sequence) else [None]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise InvalidRequestError(f"{name}={prompt!r:.200} must be a text or a non-empty list of texts")
        return list(map(str, texts)), False
    assert input_ids is not None
    if isinstance(input_ids, str | bytes | bytearray) or not isinstance(input_ids, Sequence) or not input_ids:
        raise InvalidRequestError(
            f"input_ids={input_ids!r:.200} must be a non-empty list of token ids, or of such lists"
        )
    if isinstance(input_ids[0], Sequence):
        return [{"prompt_token_ids": ids} for ids in input_ids], False
    return [{"prompt_token_ids": input_ids}], True


def one_each(name: str, value: Any, count: int, kind: Any) -> list[Any]:
    """One value per prompt.

    Raises:
        InvalidRequestError: there are more or fewer, or one is of another kind.
    """
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value] * count
    if len(values) != count:
        raise InvalidRequestError(f"{name} has {len(values)} entries for {count} prompts: give one, or one per prompt")
    for item in values:
        if not isinstance(item, kind) or (kind is int and isinstance(item, bool)):
            raise InvalidRequestError(f"{name}={item!r:.200} is not allowed")
    return values


def _logprob_options(
    is_wanted: bool, start_len: int, num_top: int, prompt_len: int, *, has_text: bool
) -> LogprobOptions:
    if not -1 <= start_len <= prompt_len:
        raise InvalidRequestError(
            f"logprob_start_len={start_len} is not allowed: it must lie in [-1, {prompt_len}], the length of the "
            "prompt; -1 is for the output only"
        )
    if not 0 <= num_top <= MAX_LOGPROBS:
        raise InvalidRequestError(f"top_logprobs_num={num_top} is not allowed: it must lie in [0, {MAX_LOGPROBS}]")
    return LogprobOptions(is_wanted, start_len, num_top, has_text)
