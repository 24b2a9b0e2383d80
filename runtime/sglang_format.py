"""SGLang's form of an answer: {"text", "output_ids", "meta_info"}. The offline engine and a server give it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .outputs import CompletionOutput, FinishReason, RequestOutput, TokenLogprobs

LogprobItem = tuple[float | None, int, str | None]
"""A token's logprob, its id, and its text where asked for. There is no logprob of the first token of all."""


@dataclass(frozen=True, slots=True)
class LogprobOptions:
    """Which logprobs an answer has.

    Attributes:
        is_wanted: whether it has any.
        start_len: from which token of the prompt on; -1 for those of the output only.
        num_top: how many of the likeliest tokens beside each.
        has_text: whether every token comes with its text.
    """

    is_wanted: bool = False
    start_len: int = -1
    num_top: int = 0
    has_text: bool = False


def answers(
    output: RequestOutput,
    options: LogprobOptions,
    decode: Callable[[int], str],
    eos_token_ids: Collection[int],
    *,
    is_prefill_only: bool = False,
) -> list[dict[str, Any]]:
    """One answer per sample of a finished request. Where it failed or was aborted, those that had not ended have what
    there is of them, and a finish_reason of type abort; if there is nothing of any, one answer says so.

    Args:
        decode: the text of a token; only called for options.has_text.
        is_prefill_only: what was generated does not count.
    """
    if output.error is not None and not output.outputs:
        meta = {"id": output.request_id, "finish_reason": _abort_reason(output), **_usage(output, 0)}
        return [{"text": "", "output_ids": [], "meta_info": meta}]
    return [
        _answer(output, completion, options, decode, eos_token_ids, is_prefill_only=is_prefill_only)
        for completion in output.outputs
    ]


def _abort_reason(output: RequestOutput) -> dict[str, Any]:
    return {"type": "abort", "message": str(output.error)}


def finish_reason(
    reason: FinishReason | None,
    stop_reason: int | str | None,
    token_ids: Sequence[int],
    eos_token_ids: Collection[int],
) -> dict[str, Any] | None:
    """Why a sample ended; `matched` is the stop string or token. None while it runs.

    A text that its constraint has ended, with no token of its own for it, has matched nothing: None.
    """
    if reason is None:
        return None
    if reason is FinishReason.LENGTH:
        return {"type": "length", "length": len(token_ids)}
    if stop_reason is None and token_ids and token_ids[-1] in eos_token_ids:
        return {"type": "stop", "matched": token_ids[-1]}
    return {"type": "stop", "matched": stop_reason}


def _answer(
    output: RequestOutput,
    completion: CompletionOutput,
    options: LogprobOptions,
    decode: Callable[[int], str],
    eos_token_ids: Collection[int],
    *,
    is_prefill_only: bool,
) -> dict[str, Any]:
    token_ids = [] if is_prefill_only else list(completion.token_ids)
    if completion.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
        reason: dict[str, Any] | None = _abort_reason(output)
    else:
        reason = finish_reason(
            FinishReason.LENGTH if is_prefill_only else completion.finish_reason,
            completion.stop_reason,
            token_ids,
            eos_token_ids,
        )
    meta = {"id": output.request_id, "finish_reason": reason, **_usage(output, len(token_ids))}
    if completion.complete is not None and not is_prefill_only:
        meta["complete"] = completion.complete
    if options.is_wanted:
        own = [] if is_prefill_only else list(completion.logprobs or [])
        meta |= _logprobs("output", token_ids, own, options, decode)
        if options.start_len >= 0:
            prompt_ids = output.prompt_token_ids[options.start_len :]
            entries = (output.prompt_logprobs or [])[options.start_len :]
            meta |= _logprobs("input", prompt_ids, entries, options, decode)
        else:
            meta |= _logprobs("input", [], [], options, decode)
    return {"text": "" if is_prefill_only else completion.text, "output_ids": token_ids, "meta_info": meta}


def _usage(output: RequestOutput, num_generated_tokens: int) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": num_generated_tokens,
        "cached_tokens": output.num_cached_tokens,
    }
    if output.num_healed_tokens:
        usage["num_healed_tokens"] = output.num_healed_tokens
    metrics = output.metrics
    if metrics.finished_time is not None:
        usage["e2e_latency"] = metrics.finished_time - metrics.arrival_time
    return usage


def _logprobs(
    which: str,
    token_ids: Sequence[int],
    entries: Sequence[TokenLogprobs | None],
    options: LogprobOptions,
    decode: Callable[[int], str],
) -> Mapping[str, Any]:
    def item(token_id: int, entry: TokenLogprobs | None) -> LogprobItem:
        logprob = None if entry is None else entry[token_id].logprob
        return (logprob, token_id, decode(token_id) if options.has_text else None)

    pairs = list(zip(token_ids, entries, strict=False))  # a request that did not end may have fewer entries
    found: dict[str, Any] = {f"{which}_token_logprobs": [item(token_id, entry) for token_id, entry in pairs]}
    if options.num_top:
        found[f"{which}_top_logprobs"] = [
            None if entry is None else [item(top_id, entry) for top_id in _likeliest(entry, options.num_top)]
            for _, entry in pairs
        ]
    return found


def _likeliest(entry: TokenLogprobs, num_top: int) -> list[int]:
    return sorted(entry, key=lambda token_id: entry[token_id].rank)[:num_top]
