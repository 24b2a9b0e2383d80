"""What lists of tokens have in common."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix_len(token_lists: Sequence[Sequence[int]]) -> int:
    """How many tokens all of the lists begin with."""
    first = token_lists[0]
    length = min(map(len, token_lists))
    for other in token_lists[1:]:
        while first[:length] != other[:length]:  # halving finds it in few comparisons of slices
            half = length // 2
            if first[:half] != other[:half]:
                length = half
                continue
            length = half + next(idx for idx in range(length - half) if first[half + idx] != other[half + idx])
    return length
