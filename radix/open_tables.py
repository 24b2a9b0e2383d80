"""OpenTables: the running sequences, by the node they stand on and the token they go on with.

A running sequence offers two things that are not in the tree yet. The partial block it is writing can be copied
from, as far as it is computed. And the tokens it is about to compute may be just those that a newcomer would compute
too: then it pays to wait one step for it.

Both need the sequences on one node, and of those only the ones whose next token is the newcomer's. A sequence that has
computed all its tokens has no next token yet; it waits aside until its next commit, and the few of that kind are
always looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .block_table import BlockTable
from .node import RadixNode
from .tokens import common_prefix_len


@dataclass(slots=True)
class _Group:
    """The tables on one node; dicts serve as ordered sets."""

    by_token: dict[int, dict[BlockTable, None]] = field(default_factory=dict)
    aside: dict[BlockTable, None] = field(default_factory=dict)


@dataclass(slots=True)
class OpenMatch:
    """What the running sequences on a node offer: the best partial block, and the longest list of like tokens."""

    num_tail_tokens: int = 0
    tail_block_id: int | None = None
    num_agreed_tokens: int = 0
    table: BlockTable | None = None


class OpenTables:
    """All live tables. add, remove and refresh are O(1)."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._groups: dict[RadixNode, _Group] = {}
        self._next_token: dict[BlockTable, int | None] = {}

    def __len__(self) -> int:
        return len(self._next_token)

    def __iter__(self) -> Iterator[BlockTable]:
        return iter(self._next_token)

    def on_node(self, node: RadixNode) -> list[BlockTable]:
        """The tables that stand on `node`. O(their number): for checks and displays."""
        group = self._groups.get(node)
        if group is None:
            return []
        return [table for tables in (*group.by_token.values(), group.aside) for table in tables]

    def add(self, table: BlockTable) -> None:
        """Enter a table under its node and next token; to be taken out before either changes."""
        group = self._groups.setdefault(table.node, _Group())
        start = table.num_committed_tokens
        if start < len(table.token_ids):
            token = table.token_ids[start]
            self._next_token[table] = token
            group.by_token.setdefault(token, {})[table] = None
        else:
            self._next_token[table] = None
            group.aside[table] = None

    def remove(self, table: BlockTable) -> None:
        group = self._groups[table.node]
        token = self._next_token.pop(table)
        if token is None:
            del group.aside[table]
        else:
            del group.by_token[token][table]
            if not group.by_token[token]:
                del group.by_token[token]
        if not group.by_token and not group.aside:
            del self._groups[table.node]

    def refresh(self, table: BlockTable) -> None:
        """Enter a table that was aside under its next token, if it has one by now."""
        if self._next_token[table] is None and table.num_committed_tokens < len(table.token_ids):
            self.remove(table)
            self.add(table)

    def best(self, node: RadixNode, token_ids: list[int], limit: int, min_tail_tokens: int) -> OpenMatch:
        """What the tables on `node` offer to a sequence whose whole blocks end there. Mutates nothing.

        Args:
            limit: look at token_ids[:limit] only.
            min_tail_tokens: a partial block must agree with more tokens than this to be of use.
        """
        best = OpenMatch(num_tail_tokens=min_tail_tokens)
        start = node.end
        if start >= limit:
            return best
        for table in self._candidates(node, token_ids[start]):
            self._improve(best, table, token_ids, start, limit)
        return best

    def _candidates(self, node: RadixNode, token: int) -> Iterable[BlockTable]:
        group = self._groups.get(node)
        if group is None:
            return ()
        return (*group.by_token.get(token, ()), *group.aside)

    def _improve(self, best: OpenMatch, table: BlockTable, token_ids: list[int], start: int, limit: int) -> None:
        """Replace what `table` is better at. Its token one past the best so far rules out most tables at once."""
        others = table.token_ids
        must_agree = start + best.num_agreed_tokens
        if must_agree < min(limit, len(others)) and others[must_agree] == token_ids[must_agree]:
            agreed = common_prefix_len(token_ids, start, others, start, min(limit, len(others)) - start)
            if agreed > best.num_agreed_tokens:
                best.num_agreed_tokens, best.table = agreed, table
        num_tail_tokens = min(table.num_tail_tokens, limit - start) if table.is_tail_written else 0
        must_agree = start + best.num_tail_tokens
        if num_tail_tokens > best.num_tail_tokens and others[must_agree] == token_ids[must_agree]:
            agreed = common_prefix_len(token_ids, start, others, start, num_tail_tokens)
            if agreed > best.num_tail_tokens:
                best.num_tail_tokens = agreed
                best.tail_block_id = table.block_ids[start // self._block_size]
