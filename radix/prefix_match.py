"""PrefixMatch: what the cache knows of a list of tokens, and how it is found. Nothing here changes anything."""

from __future__ import annotations

from dataclasses import dataclass, field

from .block_table import BlockTable
from .errors import CacheUsageError
from .node import PartialLeaf, RadixNode
from .open_tables import OpenTables
from .tree import RadixTree
from .walk import Tail, Walk


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What the cache knows of a list of tokens.

    Attributes:
        node: the tree node that the last full block is in.
        block_ids: full blocks to share.
        num_tokens: the longest common prefix: block size * len(block_ids) + num_tail_tokens.
        tail_block_id: the block to copy num_tail_tokens slots from, or None.
        num_tail_tokens: less than the block size.
        num_pending_tokens: how many more tokens than num_tokens a running sequence shares and is going to compute.
        pending_table: the table of that sequence, or None.
        tail_owner, version: for the cache itself: whose block the tail is; which state of the cache was asked.
    """

    node: RadixNode
    block_ids: tuple[int, ...]
    num_tokens: int
    tail_block_id: int | None = None
    num_tail_tokens: int = 0
    num_pending_tokens: int = 0
    pending_table: BlockTable | None = None
    tail_owner: RadixNode | PartialLeaf | None = field(default=None, repr=False, compare=False)
    version: int = field(default=-1, repr=False, compare=False)


def match_limit(num_tokens: int, max_tokens: int | None) -> int:
    """How many of `num_tokens` tokens to look at, if `max_tokens` are allowed.

    Raises:
        CacheUsageError: max_tokens is negative.
    """
    if max_tokens is None:
        return num_tokens
    if max_tokens < 0:
        raise CacheUsageError(f"max_tokens={max_tokens} is not allowed: it must not be negative")
    return min(max_tokens, num_tokens)


def find_match(
    tree: RadixTree, open_tables: OpenTables, walk: Walk, token_ids: list[int], limit: int, version: int
) -> PrefixMatch:
    """The longest known prefix of token_ids[:limit]: the whole blocks of `walk`, then the best partial one."""
    num_full = len(walk.block_ids) * tree.block_size
    tail, num_agreed, table = find_tail(tree, open_tables, walk, token_ids, num_full, limit)
    num_pending = max(num_agreed - tail.num_tokens, 0)
    return PrefixMatch(
        node=walk.node,
        block_ids=tuple(walk.block_ids),
        num_tokens=num_full + tail.num_tokens,
        tail_block_id=tail.block_id,
        num_tail_tokens=tail.num_tokens,
        num_pending_tokens=num_pending,
        pending_table=table if num_pending else None,
        tail_owner=tail.owner,
        version=version,
    )


def find_tail(
    tree: RadixTree, open_tables: OpenTables, walk: Walk, token_ids: list[int], start: int, limit: int
) -> tuple[Tail, int, BlockTable | None]:
    """The block to copy from behind the walk's end, which is `start` tokens from the root; then how many of
    token_ids[start:limit] a running sequence shares, computed or not, and its table."""
    tail = tree.best_tail(walk, token_ids, start, limit)
    if walk.num_node_blocks < len(walk.node.block_ids):
        return tail, 0, None
    found = open_tables.best(walk.node, token_ids, limit, tail.num_tokens)
    if found.tail_block_id is not None:
        tail = Tail(found.num_tail_tokens, found.tail_block_id)
    return tail, found.num_agreed_tokens, found.table


def num_locked_blocks(tree: RadixTree, match: PrefixMatch) -> int:
    """How many of the matched blocks some running sequence holds already. O(nodes on the path)."""
    num_node_blocks = len(match.block_ids) - match.node.start // tree.block_size
    return len(match.block_ids) - tree.num_newly_locked_blocks(match.node, num_node_blocks)
