"""A small exact tokenizer for the mock backend: one id per character, and merges to test token boundaries with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..backend import TextSegment

FIRST_MERGE_ID = 0x110000
FIRST_SPECIAL_ID = 0x200000


class MockTokenizer:
    """Text to ids: the longest merge that fits at each place, from left to right, else the character's code point.

    Special tokens are recognised in template text only.

    Attributes:
        special_ids: special token text to id, from FIRST_SPECIAL_ID on in the order given.
        merge_ids: merged text to id, from FIRST_MERGE_ID on in the order given.
        begin_token: put first in every text, or None.
    """

    def __init__(
        self, merges: Sequence[str] = (), special_tokens: Sequence[str] = (), begin_token: str | None = None
    ) -> None:
        self.merge_ids: Mapping[str, int] = {text: FIRST_MERGE_ID + idx for idx, text in enumerate(merges)}
        self.special_ids: Mapping[str, int] = {text: FIRST_SPECIAL_ID + idx for idx, text in enumerate(special_tokens)}
        assert begin_token is None or begin_token in self.special_ids
        self.begin_token = begin_token
        self._texts = {idx: text for table in (self.merge_ids, self.special_ids) for text, idx in table.items()}
        self._pieces = _alternatives(merges, or_any=True)
        self._specials = _alternatives(special_tokens, or_any=False)

    def encode(self, segments: Sequence[TextSegment], *, at_start: bool) -> list[int]:
        """Ids of the segments; merges do not cross a change between template and other text."""
        ids = [self.special_ids[self.begin_token]] if at_start and self.begin_token is not None else []
        for segment in segments:
            pieces = self._specials.split(segment.text) if segment.is_template else [segment.text]
            for piece in pieces:
                if segment.is_template and piece in self.special_ids:
                    ids.append(self.special_ids[piece])
                else:
                    ids.extend(self.merge_ids.get(part, ord(part[0])) for part in self._pieces.findall(piece))
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self.token_text(token_id) for token_id in token_ids)

    def token_text(self, token_id: int) -> str:
        return self._texts[token_id] if token_id in self._texts else chr(token_id)


def _alternatives(texts: Sequence[str], *, or_any: bool) -> re.Pattern[str]:
    """Matches the longest of some texts; or any one character; or, with nothing to match, nothing."""
    options = [re.escape(text) for text in sorted(texts, key=len, reverse=True)] + (["."] if or_any else [])
    return re.compile(f"({'|'.join(options)})" if options else r"((?!))", re.DOTALL)
