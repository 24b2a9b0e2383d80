"""What lists of tokens have in common."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def common_prefix_len(token_lists: Sequence[list[int]]) -> int:
    """How many tokens all of the lists begin with. Compares slices, which is faster than token by token."""
    first, *others = token_lists
    lengths = range(1, min(map(len, token_lists)) + 1)
    return bisect_left(lengths, True, key=lambda length: any(first[:length] != other[:length] for other in others))
