"""The invariants of the cache, recounted from nothing but the links and the tables.

Each function yields one sentence for each contradiction it finds. None of them relies on a running count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .block_pool import BlockPool, BlockState
from .block_table import BlockTable
from .errors import InvariantViolation
from .eviction import NEVER, UNKNOWN, eviction_key
from .node import PartialLeaf, RadixNode
from .open_tables import OpenTables
from .tree import RadixTree
from .watches import PrefixWatch, WatchGroup

__all__ = ["InvariantViolation", "find_violations"]


def find_violations(pool: BlockPool, tree: RadixTree, open_tables: OpenTables) -> list[str]:
    """All contradictions between and within the three; empty when all is well. Mutates nothing."""
    nodes = list(tree.nodes())
    tables = list(open_tables)
    return [
        *_check_holders(pool, nodes, tables, tree.block_size),
        *_check_nodes(tree, nodes),
        *_check_continuations(nodes, tree.block_size),
        *_check_locks(pool, tree, nodes, tables),
        *_check_tables(tables, open_tables, nodes, tree.block_size),
        *_check_queue(tree, nodes),
        *_check_watches(tree),
        *_check_expectations(tree, nodes),
    ]


def _check_holders(pool: BlockPool, nodes: list[RadixNode], tables: list[BlockTable], block_size: int) -> Iterator[str]:
    """Every block is held exactly once: by the free list, by the tree, or by one table; and its state says so."""
    free = list(pool.free_ids())
    in_tree = [block_id for node in nodes for block_id in node.block_ids]
    in_tree += [leaf.block_id for node in nodes for leaf in node.leaves.values()]
    private = [block_id for t in tables for block_id in t.block_ids[t.num_committed_tokens // block_size :]]
    holders = ((BlockState.FREE, free), (BlockState.TREE, in_tree), (BlockState.PRIVATE, private))
    count = Counter(free + in_tree + private)
    for block_id in range(pool.num_blocks):
        if count[block_id] != 1:
            yield f"block {block_id} is held {count[block_id]} times, must be once"
    for state, block_ids in holders:
        for block_id in block_ids:
            if pool.state(block_id) != state:
                yield f"block {block_id} is {pool.state(block_id).name}, must be {state.name}"
    for name, counted, held in (
        ("free", pool.num_free, free),
        ("tree", pool.num_tree, in_tree),
        ("private", pool.num_private, private),
    ):
        if counted != len(held):
            yield f"num_{name} is {counted}, must be {len(held)}"
    for block_id in pool.annotated_ids():
        if pool.state(block_id) == BlockState.FREE:
            yield f"block {block_id} is free, but has an annotation"


def _check_nodes(tree: RadixTree, nodes: list[RadixNode]) -> Iterator[str]:
    """Runs are whole blocks, in the right place; no root is kept for nothing."""
    roots = set(map(id, tree.roots.values()))
    for node in nodes:
        if len(node.token_ids) != tree.block_size * len(node.block_ids):
            yield f"{_name(node)} has {len(node.token_ids)} tokens in {len(node.block_ids)} blocks"
        if node.parent is None:
            if id(node) not in roots or node.block_ids or node.start:
                yield f"{_name(node)} has no parent, but is not a root"
            if node.lock_count == 0 and not node.sorted_keys and node not in tree.watches:
                yield f"{_name(node)} is an empty root that nothing runs on"
        elif not node.block_ids:
            yield f"{_name(node)} holds no block"
        elif node.start != node.parent.end:
            yield f"{_name(node)} starts at {node.start}, its parent ends at {node.parent.end}"


def _check_continuations(nodes: list[RadixNode], block_size: int) -> Iterator[str]:
    """Continuations are filed under their tokens, in order; no partial leaf begins another continuation."""
    for node in nodes:
        for key, child in node.children.items():
            if child.parent is not node or key != tuple(child.token_ids[:block_size]):
                yield f"{_name(child)} is filed wrongly under {_name(node)}"
        for key, leaf in node.leaves.items():
            if leaf.parent is not node or key != leaf.token_ids or not 0 < len(key) < block_size:
                yield f"partial leaf {leaf.block_id} is filed wrongly under {_name(node)}"
        if node.sorted_keys != sorted([*node.children, *node.leaves]):
            yield f"the order of the continuations of {_name(node)} is wrong"
        for before, after in zip(node.sorted_keys, node.sorted_keys[1:], strict=False):
            if after[: len(before)] == before:
                yield f"partial leaf {node.leaves[before].block_id} begins another continuation of {_name(node)}"


def _check_locks(pool: BlockPool, tree: RadixTree, nodes: list[RadixNode], tables: list[BlockTable]) -> Iterator[str]:
    """A node is locked once for each table on it or below it; the running count of locked blocks is right."""
    locks: Counter[RadixNode] = Counter()
    for table in tables:
        node: RadixNode | None = table.node
        while node is not None:
            locks[node] += 1
            node = node.parent
    for node in nodes:
        if node.lock_count != locks[node]:
            yield f"{_name(node)} is locked {node.lock_count} times, must be {locks[node]}"
        if node.parent is not None and node.parent.lock_count < node.lock_count:
            yield f"{_name(node)} is locked more often than its parent"
    num_locked = sum(len(node.block_ids) for node in nodes if locks[node])
    if tree.num_locked_blocks != num_locked:
        yield f"num_locked_blocks is {tree.num_locked_blocks}, must be {num_locked}"
    evictable = sum(len(node.block_ids) for node in nodes if not locks[node]) + sum(len(n.leaves) for n in nodes)
    if pool.num_tree - tree.num_locked_blocks != evictable:
        yield f"num_evictable_blocks is {pool.num_tree - tree.num_locked_blocks}, must be {evictable}"


def _check_tables(
    tables: list[BlockTable], open_tables: OpenTables, nodes: list[RadixNode], block_size: int
) -> Iterator[str]:
    """A live table stands on the node whose path holds its committed tokens, in its own blocks."""
    for number, table in enumerate(tables):
        name, end = f"table {number} ({len(table.token_ids)} tokens)", table.num_committed_tokens
        tokens, block_ids = _path(table.node)
        if table.is_released:
            yield f"{name} was released, but is still open"
        if table.node not in nodes:
            yield f"{name} stands on a node that is not in the tree"
        if table.node.end != end or end % block_size:
            yield f"{name} has {end} committed tokens, its node ends at {table.node.end}"
        if tokens != table.token_ids[:end]:
            yield f"{name} stands on the path of other tokens"
        if block_ids != table.block_ids[: end // block_size]:
            yield f"{name} has other blocks than its path"
        if not 0 <= table.num_tail_tokens < block_size:
            yield f"{name} has {table.num_tail_tokens} computed tokens that are not committed"
        if table.num_computed_tokens > min(len(table.token_ids), len(table.block_ids) * block_size):
            yield f"{name} has {table.num_computed_tokens} computed tokens in {len(table.block_ids)} blocks"
        if not any(table is other for other in open_tables.on_node(table.node)):
            yield f"{name} is not filed under its node"
    if sum(len(open_tables.on_node(node)) for node in nodes) != len(tables):
        yield "tables are filed under nodes they do not stand on"


def _check_queue(tree: RadixTree, nodes: list[RadixNode]) -> Iterator[str]:
    """Whatever can be evicted is in the queue, under a key that is not larger than its present one."""
    queued = {id(piece): key for key, piece in tree.queued()}
    pieces: list[RadixNode | PartialLeaf] = [*nodes]
    pieces += [leaf for node in nodes for leaf in node.leaves.values()]
    for piece in pieces:
        key = queued.get(id(piece))
        if piece.is_evictable and (key is None or key > eviction_key(tree.policy, piece.usage)):
            yield f"an evictable piece behind {_name(piece.parent)} has the key {key} in the eviction queue"
        if piece.usage.is_queued != (key is not None):
            yield f"a piece behind {_name(piece.parent)} does not know whether it is queued"


def _check_watches(tree: RadixTree) -> Iterator[str]:
    """A watch is where a new walk would end, has its blocks, and is in the group of what it waits for there."""
    for node, num_tokens, next_key, group in tree.watches.entries():
        name = f"group of {len(group.members)} watches on {_name(node)}"
        if (node, num_tokens, next_key) != (group.node, group.num_tokens, group.next_key) or not group.members:
            yield f"{name} is filed wrongly"
        for watch, num_common in group.members.items():
            yield from _check_watch(tree, group, watch)
            known, limit = num_tokens + len(next_key), min(group.limit, watch.limit)
            if not max(known, group.num_common_tokens) <= num_common <= limit:
                yield f"{name} has a member with {num_common} common tokens, must be {known} to {limit}"
            elif group.token_ids[:num_common] != watch.token_ids[:num_common]:
                yield f"{name} has a member that parts before its {num_common} common tokens"


def _check_expectations(tree: RadixTree, nodes: list[RadixNode]) -> Iterator[str]:
    """Each is filed under a piece of the tree, which knows the nearest of its own."""
    nearest: dict[RadixNode | PartialLeaf, int] = {}
    for piece, expectation in tree.expectations.entries():
        if expectation.piece is not piece:
            yield f"an expectation is filed behind {_name(piece.parent)}, but is elsewhere"
        nearest[piece] = min(nearest.get(piece, expectation.steps), expectation.steps)
    pieces: list[RadixNode | PartialLeaf] = [*nodes]
    pieces += [leaf for node in nodes for leaf in node.leaves.values()]
    for piece in pieces:
        steps, is_expected = piece.usage.steps_to_use, piece in nearest
        told = nearest.pop(piece, steps)
        is_used_all_the_same = (told, steps) == (NEVER, UNKNOWN)
        if (steps != told and not is_used_all_the_same) or (not is_expected and steps < UNKNOWN) or steps > NEVER:
            yield f"a piece behind {_name(piece.parent)} is wrongly expected in {steps} steps"
    if nearest:
        yield f"{len(nearest)} pieces are expected that are not in the tree"


def _check_watch(tree: RadixTree, group: WatchGroup, watch: PrefixWatch) -> Iterator[str]:
    name = f"watch of {len(watch.token_ids)} tokens"
    if watch.group is not group or not watch.is_watching:
        yield f"{name} is not in the group it is filed in"
        return
    walk = tree.walk(tree.find_root(watch.namespace), watch.token_ids, watch.limit)
    end = len(walk.block_ids) * tree.block_size
    if watch.num_tokens != end or watch.node is not walk.node:
        yield f"{name} has {watch.num_tokens} of them on {_name(watch.node)}, must have {end} on {_name(walk.node)}"
    elif watch.block_ids() != walk.block_ids:
        yield f"{name} has other blocks than its path"
    wanted = watch.token_ids[watch.num_tokens : min(watch.limit, watch.num_tokens + tree.block_size)]
    if watch.next_key != (tuple(wanted) if len(wanted) == tree.block_size else ()):
        yield f"{name} waits for another block than its next"


def _path(node: RadixNode) -> tuple[list[int], list[int]]:
    path = []
    ancestor: RadixNode | None = node
    while ancestor is not None:
        path.append(ancestor)
        ancestor = ancestor.parent
    tokens = [token for node in reversed(path) for token in node.token_ids]
    return tokens, [block_id for node in reversed(path) for block_id in node.block_ids]


def _name(node: RadixNode | None) -> str:
    if node is None or not node.block_ids:
        return "a root"
    return f"node {node.start}..{node.end} (tokens {', '.join(map(str, node.token_ids[:4]))}, ...)"
