"""What a call took, in the form of SGLang's meta_info: a dict per text, with its keys where both know a thing.

A token's log-probability is a list [logprob, token id, text]; the first token of a prompt has none, so None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .calls import CallMeta
from .generation import Sample, TokenLogprob
from .values import Joined, Value

MetaInfo = dict[str, Any]
Decode = Callable[[Sequence[int]], str]


def meta_info_of(value: Value, decode: Decode, timeout: float | None = None) -> MetaInfo | list[MetaInfo]:
    """That of a variable: a list with n > 1 or after a join. Blocks and raises as `value.metas` does."""
    infos = [info for meta in value.metas(timeout) for info in _meta_infos(meta, decode)]
    return infos if isinstance(value, Joined) or len(infos) > 1 else infos[0]


def _meta_infos(meta: CallMeta, decode: Decode) -> list[MetaInfo]:
    """One for each text of a gen, or for the one of a select.

    Of both: prompt_tokens, cached_tokens, completion_tokens, finish_reason, e2e_latency (seconds). Of a gen that
    reports log-probabilities: output_token_logprobs and output_top_logprobs, input_token_logprobs and
    input_top_logprobs from the first token that was asked for. Of a select: choices, normalized_prompt_logprobs (the
    mean of each), choice_scores, and per choice input_token_logprobs; unconditional ones if its method took them.
    """
    if meta.choices:
        return [_select_info(meta, decode)]
    return [_gen_info(meta, sample, decode) for sample in meta.samples]


def _common(meta: CallMeta, num_generated_tokens: int, finish_reason: MetaInfo) -> MetaInfo:
    return {
        "prompt_tokens": meta.num_prompt_tokens,
        "cached_tokens": meta.num_cached_tokens,
        "completion_tokens": num_generated_tokens,
        "finish_reason": finish_reason,
        "e2e_latency": meta.duration_s,
    }


def _gen_info(meta: CallMeta, sample: Sample, decode: Decode) -> MetaInfo:
    num_tokens = len(sample.token_ids)
    if sample.finish_reason == "length":
        finish_reason: MetaInfo = {"type": "length", "length": num_tokens}
    else:
        finish_reason = {"type": sample.finish_reason, "matched": sample.stop_reason}
    info = _common(meta, num_tokens, finish_reason)
    if sample.logprobs is not None:
        info["output_token_logprobs"] = [_entry(item, decode) for item in sample.logprobs]
        info["output_top_logprobs"] = [_top(item, decode) for item in sample.logprobs]
    if meta.prompt_logprobs is not None:
        known = [idx for idx, item in enumerate(meta.prompt_logprobs) if item is not None]
        asked = meta.prompt_logprobs[known[0] :] if known else ()
        info["input_token_logprobs"] = [_entry(item, decode) for item in asked if item is not None]
        info["input_top_logprobs"] = [_top(item, decode) for item in asked if item is not None]
    return info


def _select_info(meta: CallMeta, decode: Decode) -> MetaInfo:
    info = _common(meta, 0, {"type": "select", "matched": None})
    choices = [item.choice for item in meta.choices]
    info["choices"] = [choice.text for choice in choices]
    info["choice_scores"] = [item.score for item in meta.choices]
    info["normalized_prompt_logprobs"] = [choice.mean_logprob for choice in choices]
    info["input_token_logprobs"] = [_entries(choice.token_ids, choice.logprobs, decode) for choice in choices]
    unconditional = [choice.unconditional_logprobs for choice in choices]
    if all(logprobs is not None for logprobs in unconditional):
        pairs = [
            (choice.token_ids, logprobs)
            for choice, logprobs in zip(choices, unconditional, strict=True)
            if logprobs is not None
        ]
        info["unconditional_token_logprobs"] = [_entries(ids, logprobs, decode) for ids, logprobs in pairs]
        info["normalized_unconditional_prompt_logprobs"] = [sum(logprobs) / len(logprobs) for _, logprobs in pairs]
    return info


def _entries(token_ids: Sequence[int], logprobs: Sequence[float], decode: Decode) -> list[list[Any]]:
    return [[logprob, token_id, decode([token_id])] for token_id, logprob in zip(token_ids, logprobs, strict=True)]


def _entry(item: TokenLogprob, decode: Decode) -> list[Any]:
    return [item.logprob, item.token_id, decode([item.token_id])]


def _top(item: TokenLogprob, decode: Decode) -> list[list[Any]]:
    return [[logprob, token_id, decode([token_id])] for token_id, logprob in item.top]
