"""CacheSnapshot: what is in the cache at one moment, as plain data that nothing changes any more."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from .node import PartialLeaf, RadixNode
from .prefix_cache import PrefixCache


@dataclass(frozen=True, slots=True)
class CachedRun:
    """One node or partial leaf of a tree.

    Attributes:
        run_idx: its place in the snapshot.
        parent_idx: the place of what it continues; None at the beginning of a text.
        namespace: of its tree.
        start: how many tokens come before it.
        token_ids: those whose KV it holds.
        num_hits: how many sequences were started on it, or went on from it.
        last_access: tick of the cache's clock when it was last used; only their order means something.
        num_running: how many running sequences have it in their tables. It is not evicted then.
        is_partial: less than a block at the end of a text, which is copied from.
    """

    run_idx: int
    parent_idx: int | None
    namespace: Hashable
    start: int
    token_ids: tuple[int, ...]
    num_hits: int
    last_access: int
    num_running: int = 0
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """The trees of a cache.

    Attributes:
        block_size: token slots in a block.
        num_blocks, num_free_blocks, num_tree_blocks: in all, unused, and in the trees.
        runs: every node and partial leaf, each after what it continues.
    """

    block_size: int
    num_blocks: int
    num_free_blocks: int
    num_tree_blocks: int
    runs: tuple[CachedRun, ...]


def take_snapshot(cache: PrefixCache) -> CacheSnapshot:
    """O(tokens in the trees). Changes nothing, not even what eviction goes by."""
    runs: list[CachedRun] = []
    for namespace, root in cache.tree.roots.items():
        stack: list[tuple[RadixNode | PartialLeaf, int | None, int]] = _behind(root, None)
        while stack:
            piece, parent_idx, start = stack.pop()
            run = CachedRun(
                run_idx=len(runs),
                parent_idx=parent_idx,
                namespace=namespace,
                start=start,
                token_ids=tuple(piece.token_ids),
                num_hits=piece.usage.num_hits,
                last_access=piece.usage.last_access,
                num_running=piece.lock_count if isinstance(piece, RadixNode) else 0,
                is_partial=isinstance(piece, PartialLeaf),
            )
            runs.append(run)
            if isinstance(piece, RadixNode):
                stack += _behind(piece, run.run_idx)
    return CacheSnapshot(cache.block_size, cache.num_blocks, cache.num_free_blocks, cache.num_tree_blocks, tuple(runs))


def _behind(node: RadixNode, node_idx: int | None) -> list[tuple[RadixNode | PartialLeaf, int | None, int]]:
    """What continues a node, the first one last."""
    pieces: list[RadixNode | PartialLeaf] = [*node.children.values(), *node.leaves.values()]
    return [(piece, node_idx, node.end) for piece in reversed(pieces)]
