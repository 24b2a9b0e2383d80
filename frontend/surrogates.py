"""Surrogates in texts. JSON reads two that stand side by side as one character, whatever they were written from."""

from __future__ import annotations

import re

_PAIR = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")


def is_half_pair(text: str) -> bool:
    """Whether it ends with the first half of a pair."""
    return "\ud800" <= text[-1:] <= "\udbff"


def joined_pairs(text: str) -> str:
    """The text with every pair as the character it stands for; lone surrogates stay."""
    if _PAIR.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def split_pairs(text: str) -> list[str]:
    """Pieces of the text without a pair in any; one if there is none."""
    return _PAIR.split(text)
