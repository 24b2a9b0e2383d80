"""An answer of `/generate`, read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...sampling_params import SamplingParams
from ..generation import Sample, TokenLogprob
from ..surrogates import is_half_pair
from .errors import BackendCallError
from .scored_rows import ScoredRow
from .text_ids import TOKEN_BASE, TextIds


def text_so_far(answer: Mapping[str, Any], shown: str) -> str:
    """The text of one event of a stream.

    Raises:
        BackendCallError: it does not go on from what was shown.
    """
    text = answer.get("text")
    if not isinstance(text, str) or not text.startswith(shown):
        raise BackendCallError(
            "the server's stream is not cumulative: each event must have the whole text so far; start the server "
            "without incremental streaming"
        )
    return text[:-1] if is_half_pair(text) else text  # the other half comes with the next event


def server_ids(answer: Mapping[str, Any]) -> list[int]:
    """The token ids that the server generated.

    Raises:
        BackendCallError: it does not tell them.
    """
    found = answer.get("output_ids")
    if not isinstance(found, list) or not all(isinstance(token_id, int) for token_id in found):
        raise BackendCallError("the server does not tell which tokens it generated (output_ids): use_token_ids=False")
    return found


def healed_text(meta: Mapping[str, Any], prompt: str, num_healable: int) -> str:
    """The end of the prompt that the server has taken off, which the generated tokens begin with.

    Raises:
        BackendCallError: it took more than it might.
    """
    healed = meta.get("healed_text") or ""
    if not isinstance(healed, str) or len(healed) > num_healable or not prompt.endswith(healed):
        raise BackendCallError(f"the server has healed {healed!r}, which is not the end of the prompt that it might")
    return healed


def sample_of(
    answer: Mapping[str, Any], params: SamplingParams, ids: TextIds, *, uses_ids: bool, healed: str = ""
) -> Sample:
    """The sample. Its token ids are the server's where they are used or logprobs were asked for, else characters.

    Args:
        healed: what the server's tokens spell before the text.
    """
    meta = answer["meta_info"]
    text: str = answer["text"]
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else reason
    matched = reason.get("matched") if isinstance(reason, dict) else None
    if kind not in ("stop", "length"):
        raise BackendCallError(f"the server ended the text with finish_reason {reason!r}, which is none that is known")
    logprobs = None if params.logprobs is None else _logprobs(meta, ids)
    token_ids = tuple(map(ord, text))
    if uses_ids:
        token_ids = tuple(TOKEN_BASE + token_id for token_id in server_ids(answer))
    elif logprobs is not None:
        token_ids = tuple(item.token_id for item in logprobs)
    if logprobs is not None and len(logprobs) != len(token_ids):
        raise BackendCallError(f"the server gave {len(logprobs)} logprobs for {len(token_ids)} tokens")
    spelled = healed + text if uses_ids else text
    kept = _kept(token_ids, spelled, ids, matched, uses_ids=uses_ids)
    leftover = spelled.removeprefix(ids.decode(kept)) if _spells(kept, spelled, ids) else ""
    complete = None
    if params.grammar_spec is not None:
        complete = bool(meta["complete"]) if "complete" in meta else kind == "stop"
    return Sample(
        text=text,
        token_ids=token_ids,
        kept_token_ids=kept,
        leftover_text=leftover if len(leftover) <= len(text) else text,
        finish_reason=kind,
        stop_reason=_stop_reason(matched, params),
        logprobs=logprobs,
        complete=complete,
    )


def _stop_reason(matched: object, params: SamplingParams) -> str | int | None:
    """The stop string or stop token; None for the model's own end."""
    if isinstance(matched, str) or (isinstance(matched, int) and matched in params.stop_ids):
        return matched
    return None


def _spells(token_ids: Sequence[int], text: str, ids: TextIds) -> bool:
    return text.startswith(ids.decode(token_ids))


def _kept(token_ids: tuple[int, ...], text: str, ids: TextIds, matched: object, *, uses_ids: bool) -> tuple[int, ...]:
    """The leading tokens that lie wholly inside the text: all but a stop token, unless a stop string has cut it."""
    if isinstance(matched, int) and token_ids and token_ids[-1] == TOKEN_BASE + matched:
        token_ids = token_ids[:-1]
    if ids.decode(token_ids) == text or (uses_ids and not isinstance(matched, str)):
        return token_ids
    num_kept = len(token_ids)
    while num_kept and not _spells(token_ids[:num_kept], text, ids):
        num_kept -= 1
    return token_ids[:num_kept]


def _logprobs(meta: Mapping[str, Any], ids: TextIds) -> tuple[TokenLogprob, ...]:
    """What is reported of each generated token. Learns their spelling from it."""
    items = meta.get("output_token_logprobs")
    if not isinstance(items, list):
        raise BackendCallError("the server gave no logprobs (output_token_logprobs)")
    tops = meta.get("output_top_logprobs") or [()] * len(items)
    found = []
    for (logprob, token_id, text), top in zip(items, tops, strict=True):
        _learn(ids, token_id, text)
        for _, other, other_text in top or ():
            _learn(ids, other, other_text)
        likeliest = tuple((TOKEN_BASE + other, value) for value, other, _ in top or ())
        found.append(TokenLogprob(TOKEN_BASE + token_id, logprob, likeliest))
    return tuple(found)


def scored_row(answer: Mapping[str, Any], ids: TextIds) -> ScoredRow:
    """The tokens of a prompt with their logprobs, as far back as was asked. Learns their spelling from it.

    Raises:
        BackendCallError: the server gives none.
    """
    items = answer["meta_info"].get("input_token_logprobs")
    if not isinstance(items, list) or not items:
        raise BackendCallError("the server gives no logprobs of a prompt (input_token_logprobs), so it cannot select")
    for _, token_id, text in items:
        _learn(ids, token_id, text)
    return ScoredRow(tuple(TOKEN_BASE + token_id for _, token_id, _ in items), tuple(item[0] for item in items))


def _learn(ids: TextIds, token_id: int, text: str | None) -> None:
    if text is not None and not ids.is_known(TOKEN_BASE + token_id):
        ids.learn(TOKEN_BASE + token_id, text.encode("utf-8", "surrogatepass"))
