"""Logprobs in the form of chat completions and responses: an object for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...logprobs import Logprob
from ...outputs import TokenLogprobs
from ...tokenizer import Tokenizer
from ..json_text import finite


def token_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], num_top: int
) -> list[dict[str, Any]]:
    """
    Args:
        num_top: how many of the most likely tokens are listed beside each.
    """
    listed = []
    for token_id, entries in zip(token_ids, logprobs, strict=True):
        top = sorted((each.rank, token, each) for token, each in entries.items() if each.rank <= num_top)
        own = _entry(tokenizer, token_id, entries[token_id])
        listed.append({**own, "top_logprobs": [_entry(tokenizer, token, each) for _, token, each in top]})
    return listed


def _entry(tokenizer: Tokenizer, token_id: int, entry: Logprob) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {"token": data.decode(errors="replace"), "logprob": finite(entry.logprob), "bytes": list(data)}
