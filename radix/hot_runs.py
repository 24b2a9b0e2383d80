"""HotRuns: the part of a cache that is hit most, cut to a size, for those who watch it while it is used."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import count

from .node import PartialLeaf, RadixNode
from .prefix_cache import PrefixCache

Piece = RadixNode | PartialLeaf


@dataclass(frozen=True, slots=True)
class HotRun:
    """One node or partial leaf of a tree.

    Attributes:
        parent_idx: the place among the runs of what it continues; None at the beginning of a text.
        namespace: of its tree.
        start: how many tokens come before it.
        num_tokens: those whose KV it holds.
        token_ids: the first of them.
        num_hits: how many sequences were started on it, or went on from it.
        last_access: tick of the cache's clock when it was last used; only their order means something.
        num_running: how many running sequences have it in their tables.
        num_hidden: what continues it and is not among the runs.
        is_partial: less than a block at the end of a text.
    """

    parent_idx: int | None
    namespace: Hashable
    start: int
    num_tokens: int
    token_ids: tuple[int, ...]
    num_hits: int
    last_access: int
    num_running: int
    num_hidden: int
    is_partial: bool


@dataclass(frozen=True, slots=True)
class HotRuns:
    """The runs that are hit most.

    Attributes:
        runs: each after what it continues; what continues the same run stands in the order in which it came.
        num_hidden: beginnings of texts that are not among the runs.
    """

    runs: tuple[HotRun, ...]
    num_hidden: int


@dataclass(slots=True)
class _Shown:
    """A piece that was chosen, with what was chosen of its continuations."""

    piece: Piece | None
    namespace: Hashable
    start: int
    num_behind: int
    behind: list[tuple[int, _Shown]] = field(default_factory=list)


def hot_runs(cache: PrefixCache, max_num_runs: int, max_num_tokens: int) -> HotRuns:
    """The `max_num_runs` most hit, with `max_num_tokens` of each at most. Changes nothing, not even what eviction goes
    by. A run has at least the hits of what continues it, so looking at the best first finds the best of all.

    O(max_num_runs * max_num_tokens + what continues the runs chosen), however long the runs are.
    """
    roots = [_Shown(None, namespace, 0, len(root.sorted_keys)) for namespace, root in cache.tree.roots.items()]
    candidates: list[tuple[int, int, int, int, Piece, _Shown]] = []
    ticket = count()

    def look_behind(shown: _Shown, node: RadixNode) -> None:
        for order, piece in _best(_behind(node), max_num_runs):
            usage = piece.usage
            heapq.heappush(candidates, (-usage.num_hits, -usage.last_access, next(ticket), order, piece, shown))

    for shown, root in zip(roots, cache.tree.roots.values(), strict=True):
        look_behind(shown, root)
    for _ in range(max_num_runs):
        if not candidates:
            break
        *_, order, piece, above = heapq.heappop(candidates)
        shown = _Shown(piece, above.namespace, _start(piece), 0)
        above.behind.append((order, shown))
        if isinstance(piece, RadixNode):
            shown.num_behind = len(piece.sorted_keys)
            look_behind(shown, piece)
    return HotRuns(_in_order(roots, max_num_tokens), sum(root.num_behind - len(root.behind) for root in roots))


def _behind(node: RadixNode) -> list[Piece]:
    return [*node.children.values(), *node.leaves.values()]


def _best(pieces: list[Piece], most: int) -> Iterable[tuple[int, Piece]]:
    """The most hit, each with its place among the pieces."""
    if len(pieces) <= most:
        return enumerate(pieces)
    hits = [piece.usage.num_hits for piece in pieces]
    least = heapq.nlargest(most, hits)[-1] if most else 0
    candidates = [idx for idx, num_hits in enumerate(hits) if num_hits >= least]
    best = heapq.nlargest(most, candidates, key=lambda idx: (hits[idx], pieces[idx].usage.last_access))
    return [(idx, pieces[idx]) for idx in best]


def _start(piece: Piece) -> int:
    if isinstance(piece, RadixNode):
        return piece.start
    assert piece.parent is not None
    return piece.parent.end


def _in_order(roots: list[_Shown], max_num_tokens: int) -> tuple[HotRun, ...]:
    runs: list[HotRun] = []
    todo: list[tuple[_Shown, int | None]] = [(shown, None) for root in reversed(roots) for shown in _last_first(root)]
    while todo:
        shown, parent_idx = todo.pop()
        piece = shown.piece
        assert piece is not None
        todo += [(behind, len(runs)) for behind in _last_first(shown)]
        runs.append(
            HotRun(
                parent_idx=parent_idx,
                namespace=shown.namespace,
                start=shown.start,
                num_tokens=len(piece.token_ids),
                token_ids=tuple(piece.token_ids[:max_num_tokens]),
                num_hits=piece.usage.num_hits,
                last_access=piece.usage.last_access,
                num_running=piece.lock_count if isinstance(piece, RadixNode) else 0,
                num_hidden=shown.num_behind - len(shown.behind),
                is_partial=isinstance(piece, PartialLeaf),
            )
        )
    return tuple(runs)


def _last_first(shown: _Shown) -> list[_Shown]:
    return [behind for _, behind in sorted(shown.behind, key=lambda pair: -pair[0])]
