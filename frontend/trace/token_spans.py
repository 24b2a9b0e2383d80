"""Which part of a decoded text each token is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .program_trace import TokenText

_MAX_CHARS_PER_TOKEN = 16
"""Of a token that is only part of a character, when its place is looked for."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens that only together are text, most often one."""

    token_ids: tuple[int, ...]
    text: str
    is_special: bool = False


def token_spans(token_ids: Sequence[int], text: str, texts: Mapping[int, TokenText]) -> list[TokenSpan] | None:
    """The text cut into what its tokens are; None where the tokens' own texts do not add up to it.

    A token that is part of a character has no text of its own. Those in a row are one span, up to the next token that
    has one.
    """
    spans: list[TokenSpan] = []
    position = 0
    partial: list[int] = []
    for token_id in token_ids:
        token = texts.get(token_id)
        if token is None:
            return None
        if "\ufffd" in token.text:
            partial.append(token_id)
            continue
        own = token.text
        if not spans and not partial and not text.startswith(own):
            own = own.lstrip(" ")  # some tokenizers leave out the space that a text begins with
        start = position
        if partial:
            start = text.find(own, position, position + _MAX_CHARS_PER_TOKEN * len(partial) + len(own))
        if start < 0 or not text.startswith(own, start):
            return None
        if partial:
            spans.append(TokenSpan(tuple(partial), text[position:start]))
            partial = []
        spans.append(TokenSpan((token_id,), own, token.is_special))
        position = start + len(own)
    if partial:
        spans.append(TokenSpan(tuple(partial), text[position:]))
        position = len(text)
    return spans if position == len(text) else None
