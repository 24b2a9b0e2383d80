"""Logprobs in the form of `/v1/completions`: lists beside each other, one entry per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...outputs import TokenLogprobs
from ...tokenizer import Tokenizer
from ..json_text import finite
from .answers import token_text


class TextPositions:
    """Where in a growing text its tokens begin, in characters."""

    def __init__(self, num_chars: int = 0) -> None:
        self._num_chars = num_chars
        self._rest = b""  # of a character whose other bytes are still to come

    def place(self, data: bytes) -> int:
        """Where a token of these bytes begins, which comes next: at the character that its first byte belongs to."""
        start = self._num_chars
        self._rest += data
        whole = _whole_chars(self._rest)
        self._num_chars += len(whole.decode(errors="replace"))
        self._rest = self._rest[len(whole) :]
        return start


def _whole_chars(data: bytes) -> bytes:
    """The bytes without a character at their end that is not complete."""
    for num_bytes in range(1, min(4, len(data)) + 1):
        lead = data[-num_bytes]
        if lead & 0xC0 == 0x80:
            continue
        length = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        return data[:-num_bytes] if lead >= 0xC0 and length > num_bytes else data
    return data


class LogprobLists:
    """Makes the lists for one choice, piece by piece.

    Args:
        num_top: how many of the most likely tokens are listed, beside the one that is there.
        shows_ids: tokens are called "token_id:ID" rather than by their texts.
        skips_special: special tokens are no part of the text.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int, *, shows_ids: bool, skips_special: bool) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._shows_ids = shows_ids
        self._skips_special = skips_special
        self._positions = TextPositions()

    def lists(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs | None],
        num_hidden: int = 0,
        *,
        is_prompt: bool,
    ) -> dict[str, list[Any]]:
        """The lists for the next tokens. The one token of a prompt that nothing came before has None.

        Args:
            num_hidden: of the first ones that are no part of the text.
        """
        offsets = []
        for idx, token_id in enumerate(token_ids):
            is_hidden = self._skips_special and not is_prompt and self._tokenizer.is_special(token_id)
            data = b"" if is_hidden or idx < num_hidden else self._tokenizer.token_bytes(token_id)
            offsets.append(self._positions.place(data))
        entries = [
            None if entry is None else finite(entry[token_id].logprob)
            for token_id, entry in zip(token_ids, logprobs, strict=True)
        ]
        return {
            "text_offset": offsets,
            "token_logprobs": entries,
            "tokens": [self._name(token_id) for token_id in token_ids],
            "top_logprobs": [
                None if entry is None else self._top(token_id, entry)
                for token_id, entry in zip(token_ids, logprobs, strict=True)
            ],
        }

    def _top(self, token_id: int, entries: TokenLogprobs) -> dict[str, float]:
        """The most likely tokens and the one that is there. Of two with one text, the less likely is called by its id,
        so that none is lost."""
        listed: dict[str, float] = {}
        for token, entry in sorted(entries.items(), key=lambda item: item[1].rank):
            if entry.rank <= self._num_top or token == token_id:
                name = self._name(token)
                listed[f"token_id:{token}" if name in listed else name] = finite(entry.logprob)
        return listed

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._shows_ids else token_text(self._tokenizer, token_id)
