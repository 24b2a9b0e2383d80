"""gen_int and gen_string: gens of one type. Arguments come in SGLang's order, which is not quite that of gen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .primitives import Expression, gen


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    **options: Any,
) -> Expression:
    """`gen` with dtype=int; `options` are its other arguments. Raises as `gen` does."""
    return _typed(int, **locals())


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    **options: Any,
) -> Expression:
    """`gen` with dtype=str; `options` are its other arguments. Raises as `gen` does."""
    return _typed(str, **locals())


def _typed(dtype: type, *, options: dict[str, Any], **arguments: Any) -> Expression:
    return gen(dtype=dtype, **arguments, **options)
