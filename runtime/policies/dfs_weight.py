"""Depth-first by weight: finish what hangs together before beginning something else (SGLang's dfs-weight)."""

from __future__ import annotations

from collections import Counter

from ...radix.node import RadixNode
from ..sequence import Sequence
from .base import WaitingView, latest_arrival

MAX_OVERTAKEN = 64
_BEYOND_ANY_LEN = 1 << 32


class DepthFirstWeight:
    """Depth-first through the cached tree. A node's weight is the number of waiting sequences whose cached prefix ends
    at it or below; the heavier child comes first, and children before those that wait at the node itself.
    Of those that wait inside its run, the ones further down come first, as if it were cut there.

    Bound: who was overtaken MAX_OVERTAKEN times comes before all who were not, in order of arrival. So a sequence is
    overtaken at most that often, and once by each that waits at that moment.
    """

    name = "dfs-weight"
    is_returning_first = True

    def ranks(self, waiting: WaitingView) -> list[int]:
        groups = [watch.group for watch in waiting.watches]
        ranks = _visit(Counter([group.node for group in groups]))
        return [
            ranks[group.node] - group.num_tokens if overtaken < MAX_OVERTAKEN else -_BEYOND_ANY_LEN
            for group, overtaken in zip(groups, waiting.num_overtaken(), strict=True)
        ]

    def victim(self, running: list[Sequence]) -> Sequence:
        return latest_arrival(running)


def _visit(num_waiting: Counter[RadixNode]) -> dict[RadixNode, int]:
    """The order in which a depth-first walk leaves the nodes that sequences wait at, with room between any two of them
    for the lengths in a run. O(nodes on their paths * log)."""
    weights = dict(num_waiting)
    for node in num_waiting:
        ancestor = node.parent
        while ancestor is not None and ancestor not in weights:
            weights[ancestor] = 0
            ancestor = ancestor.parent
    roots: list[RadixNode] = []
    children: dict[RadixNode, list[RadixNode]] = {}
    for node in sorted(weights, key=lambda node: node.end, reverse=True):  # children before parents
        if node.parent is None:
            roots.append(node)
        else:
            weights[node.parent] += weights[node]
            children.setdefault(node.parent, []).append(node)
    # A walk that takes each node before its children, and the lightest first, is the wanted one backwards.
    backwards: list[RadixNode] = []
    stack = sorted(roots, key=weights.__getitem__, reverse=True)
    while stack:
        node = stack.pop()
        backwards.append(node)
        if node in children:
            stack += sorted(children[node], key=weights.__getitem__, reverse=True)
    return {node: idx * _BEYOND_ANY_LEN for idx, node in enumerate(reversed(backwards))}
