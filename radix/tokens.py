"""Comparing runs of token ids at the speed of the interpreter's own list comparison."""

from __future__ import annotations


def common_prefix_len(a: list[int], a_start: int, b: list[int], b_start: int, limit: int) -> int:
    """How many tokens of a[a_start:] and b[b_start:] agree, at most `limit`; both must have that many.

    Slices are compared whole, and halved where they differ: O(limit) element comparisons, all of them in C.
    """
    if a[a_start : a_start + limit] == b[b_start : b_start + limit]:
        return limit
    agree, differ = 0, limit  # the first `agree` tokens agree; the first `differ` do not
    while differ - agree > 1:
        middle = (agree + differ) // 2
        if a[a_start + agree : a_start + middle] == b[b_start + agree : b_start + middle]:
            agree = middle
        else:
            differ = middle
    return agree
