"""Insertion: how what a sequence has computed becomes the tree's.

Full blocks go in as soon as they are computed, the partial one when the sequence ends. Where the tree has the same
tokens already, the sequence's own block is freed instead. Parts of different retention are different nodes, so that
each can be evicted in its turn; what is there already rises to the retention that the sequence asks for.
"""

from __future__ import annotations

from .block_pool import BlockPool
from .block_table import BlockTable
from .node import PartialLeaf, RadixNode
from .retention import DEFAULT_RETENTION, block_retention, retention_runs
from .stats import CacheStats
from .tree import RadixTree


class Insertion:
    """Moves blocks from tables to `tree`. Mutates `pool`, `tree` and `stats`, and the table it is given."""

    def __init__(self, pool: BlockPool, tree: RadixTree, stats: CacheStats) -> None:
        self._pool = pool
        self._tree = tree
        self._stats = stats

    def insert_blocks(self, table: BlockTable) -> None:
        """Give the tree the table's full blocks, or take the tree's own where it has them. O(new blocks)."""
        tree, block_size = self._tree, self._tree.block_size
        node, start = table.node, table.num_committed_tokens
        end = table.num_computed_tokens // block_size * block_size
        for run_end, retention in retention_runs(table.retention, start, end, block_size):
            while start < run_end:
                child = tree.descend(node, table.token_ids, start, run_end)
                if child is None:
                    child = self._append(table, node, start, run_end, retention)
                else:
                    tree.lock(child, until=node)
                    child.usage.retain(retention)
                    self._replace_duplicates(table.block_ids, start // block_size, child.block_ids)
                node, start = child, child.end
        table.node, table.num_committed_tokens = node, end
        tree.touch(node, table.priority, is_hit=False)

    def insert_tail(self, table: BlockTable) -> RadixNode | PartialLeaf:
        """Keep the table's partial block behind its node, or free it if the tree has its tokens already.

        Afterwards it is not among the table's blocks any more.

        Returns:
            The piece that now ends with the table's last computed token: its new leaf, or the one there was; its node
            where a longer piece has its tokens.
        """
        tree, node, start = self._tree, table.node, table.num_committed_tokens
        tail = tuple(table.token_ids[start : table.num_computed_tokens])
        block_id = table.block_ids.pop(start // tree.block_size)
        retention = block_retention(table.retention, start, start + tree.block_size)
        known = node.continuation(tail)
        if known is not None:
            self._pool.move_annotation(block_id, self._retain_first_block(known, retention))
            self._pool.free([block_id])
            return known if isinstance(known, PartialLeaf) and known.token_ids == tail else node
        covered = self._drop_covered_leaf(node, tail, block_id)
        if covered is not None:
            retention = max(retention, covered.usage.retention)
        self._pool.adopt([block_id])
        return tree.add_leaf(node, tail, block_id, table.priority, retention)

    def retain_path(self, table: BlockTable) -> None:
        """Let the tree blocks in the table rise to the retention that its sequence asks for. O(nodes on the path)."""
        tree, node = self._tree, table.node
        while node.parent is not None:
            usage = node.usage
            if table.retention:
                runs = retention_runs(table.retention, node.start, node.end, tree.block_size)
                if len(runs) > 1 and max(retention for _, retention in runs) > usage.retention:
                    tree.split(node, (runs[-2][0] - node.start) // tree.block_size)  # its head is the parent now
                usage.retain(runs[-1][1])
            elif usage.retention < DEFAULT_RETENTION:
                usage.retain(DEFAULT_RETENTION)
            node = node.parent

    def _append(self, table: BlockTable, node: RadixNode, start: int, end: int, retention: int) -> RadixNode:
        """Put the table's blocks for tokens [start, end) behind `node`, or the first of them, if it must be kept longer
        than the others, because a partial leaf that it replaces must be. Returns the node that ends with them."""
        tokens, block_size = table.token_ids, self._tree.block_size
        first = start // block_size
        covered = self._drop_covered_leaf(node, tuple(tokens[start : start + block_size]), table.block_ids[first])
        if covered is not None and covered.usage.retention > retention:
            retention, end = covered.usage.retention, start + block_size
        new_ids = table.block_ids[first : end // block_size]
        self._pool.adopt(new_ids)
        self._stats.num_inserted_blocks += len(new_ids)
        return self._tree.append(node, tokens[start:end], new_ids, table.priority, retention)

    def _drop_covered_leaf(self, node: RadixNode, token_ids: tuple[int, ...], block_id: int) -> PartialLeaf | None:
        """Free the leaf that `block_id`, which holds token_ids, makes redundant; its annotation goes over."""
        leaf = self._tree.drop_covered_leaf(node, token_ids)
        if leaf is not None:
            self._pool.move_annotation(leaf.block_id, block_id)
            self._pool.free([leaf.block_id])
        return leaf

    def _retain_first_block(self, piece: RadixNode | PartialLeaf, retention: int) -> int:
        """Let the first block of `piece` rise to `retention`; returns its id."""
        if isinstance(piece, PartialLeaf):
            piece.usage.retain(retention)
            return piece.block_id
        if piece.usage.retention < retention:
            piece = self._tree.split(piece, 1)
            piece.usage.retain(retention)
        return piece.block_ids[0]

    def _replace_duplicates(self, block_ids: list[int], first: int, tree_block_ids: list[int]) -> None:
        """Point the table's blocks from index `first` on to the tree's, and free the table's own."""
        duplicates = block_ids[first : first + len(tree_block_ids)]
        for own, shared in zip(duplicates, tree_block_ids, strict=True):
            self._pool.move_annotation(own, shared)
        block_ids[first : first + len(tree_block_ids)] = tree_block_ids
        self._pool.free(reversed(duplicates))
        self._stats.num_deduplicated_blocks += len(duplicates)
