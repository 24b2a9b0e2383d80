"""TextIds: token ids for backends that take and give text. They keep apart who wrote what, and lose nothing.

    0 ..         a character of ordinary text, its code point (a lone surrogate too)
    0x110000 ..  a character that a chat template wrote
    0x220000 ..  a token of the model

So the ids of a program turn back into its text, or into chat messages, and no text of a user can pass for a template's.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import groupby

from ..backend import TextSegment

TEMPLATE_BASE = 0x110000
TOKEN_BASE = 0x220000

_UNKNOWN_PIECE = "\N{REPLACEMENT CHARACTER}".encode()


class TextIds:
    """Text to ids and back. Safe to use from several threads. Keeps the spelling of every token it was told of, which a
    model has a limited number of."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: dict[int, bytes] = {}
        self._interned: dict[bytes, int] = {}

    def encode(self, segments: Sequence[TextSegment]) -> list[int]:
        """One id per character."""
        return [
            ord(character) + (TEMPLATE_BASE if segment.is_template else 0)
            for segment in segments
            for character in segment.text
        ]

    def intern(self, piece: bytes) -> int:
        """The id of a token of which only its bytes are known. They need not be whole characters."""
        with self._lock:
            token_id = self._interned.setdefault(piece, TOKEN_BASE + len(self._interned))
            self._pieces[token_id] = piece
        return token_id

    def learn(self, token_id: int, piece: bytes) -> None:
        """What a token of the model, whose id there is `token_id - TOKEN_BASE`, spells."""
        self._pieces[token_id] = piece

    def is_known(self, token_id: int) -> bool:
        return token_id < TOKEN_BASE or token_id in self._pieces

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text. Bytes of tokens that are no whole character, and tokens never heard of, become U+FFFD."""
        parts: list[str] = []
        for is_token, group in groupby(token_ids, lambda token_id: token_id >= TOKEN_BASE):
            if is_token:
                spelled = b"".join(self._pieces.get(token_id, _UNKNOWN_PIECE) for token_id in group)
                parts.append(spelled.decode("utf-8", errors="replace"))
            else:
                parts += [
                    chr(token_id - TEMPLATE_BASE if token_id >= TEMPLATE_BASE else token_id) for token_id in group
                ]
        return "".join(parts)

    def segments(self, token_ids: Sequence[int]) -> list[TextSegment]:
        """The text, cut where a template's ends or begins. What the model wrote is ordinary text."""
        return [
            TextSegment(self.decode(list(group)), is_template)
            for is_template, group in groupby(token_ids, lambda token_id: TEMPLATE_BASE <= token_id < TOKEN_BASE)
        ]


def check_unicode(text: str) -> None:
    """
    Raises:
        ValueError: the text holds half a surrogate pair, which no request can carry.
    """
    place = next((idx for idx, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
    if place is not None:
        raise ValueError(
            f"the text has the lone surrogate U+{ord(text[place]):04X} at character {place}, which is no text that can "
            "be sent: decode the bytes it came from with errors='replace'"
        )
