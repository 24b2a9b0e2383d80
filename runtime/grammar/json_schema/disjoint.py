"""Whether two schemas have no value in common, as far as can be seen: what `oneOf` needs of its branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .constraints import Arrays, Conjunction, Constraint, Objects, meet

Expand = Callable[[Conjunction], Sequence[Constraint]]
_MAX_DEPTH = 4


def are_disjoint(first: Sequence[Constraint], second: Sequence[Constraint], expand: Expand, depth: int = 0) -> bool:
    """Whether surely no value satisfies one of each; False also where that cannot be seen."""
    return all(_differ(left, right, expand, depth) for left in first for right in second)


def _differ(first: Constraint, second: Constraint, expand: Expand, depth: int) -> bool:
    if meet(first, second) is None:
        return True
    if depth >= _MAX_DEPTH:
        return False
    if isinstance(first, Objects) and isinstance(second, Objects):
        for name in dict.fromkeys(first.required + second.required):
            if are_disjoint(expand(first.of_name(name)), expand(second.of_name(name)), expand, depth + 1):
                return True
    if isinstance(first, Arrays) and isinstance(second, Arrays):
        for idx in range(min(max(first.min_items, second.min_items), 100)):
            if are_disjoint(expand(first.item(idx)), expand(second.item(idx)), expand, depth + 1):
                return True
    return False
