"""RadixNode and PartialLeaf: what the tree is made of, and how a node finds its continuations."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from .eviction import Usage

TokenKey = tuple[int, ...]


def agreement(a: TokenKey, b: TokenKey) -> int:
    """How many tokens of two short tuples agree."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


@dataclass(eq=False, slots=True)
class RadixNode:
    """A run of whole blocks, with the runs that continue it. Compared by identity.

    Attributes:
        start: how many tokens come before the run, on the path from the root. A multiple of the block size.
        token_ids: the tokens of the run: block size times len(block_ids) of them. Empty in a root only.
        block_ids: the blocks that hold their KV.
        parent: None in a root, and in a node that was evicted.
        lock_count: how many running sequences have this run in their table. Never more than the parent's.
        children: continuations by the tokens of their whole first block. Two children may share their first tokens
            as long as they part within the block.
        leaves: partial leaves behind the last block, by their tokens. None of them begins another continuation.
        sorted_keys: the keys of children and leaves in lexicographic order.
    """

    start: int
    token_ids: list[int]
    block_ids: list[int]
    parent: RadixNode | None
    usage: Usage
    lock_count: int = 0
    children: dict[TokenKey, RadixNode] = field(default_factory=dict)
    leaves: dict[TokenKey, PartialLeaf] = field(default_factory=dict)
    sorted_keys: list[TokenKey] = field(default_factory=list)

    @property
    def end(self) -> int:
        """How many tokens the path from the root to the end of this run has."""
        return self.start + len(self.token_ids)

    @property
    def is_evictable(self) -> bool:
        """The end of the run can be cut off now: nothing runs on it and nothing continues it."""
        return self.lock_count == 0 and not self.sorted_keys and self.parent is not None

    def add_child(self, key: TokenKey, child: RadixNode) -> None:
        self.children[key] = child
        insort(self.sorted_keys, key)

    def add_leaf(self, leaf: PartialLeaf) -> None:
        self.leaves[leaf.token_ids] = leaf
        insort(self.sorted_keys, leaf.token_ids)

    def remove_child(self, key: TokenKey) -> None:
        del self.children[key]
        del self.sorted_keys[bisect_left(self.sorted_keys, key)]

    def remove_leaf(self, leaf: PartialLeaf) -> None:
        del self.leaves[leaf.token_ids]
        del self.sorted_keys[bisect_left(self.sorted_keys, leaf.token_ids)]

    def closest(self, wanted: TokenKey) -> tuple[int, TokenKey]:
        """How many tokens of `wanted` the best continuation agrees with, and its key; 0 and () if none agrees.

        In lexicographic order the best is next to where `wanted` would stand: whatever lies between `wanted` and a
        key that shares k tokens with it shares these k tokens too. O(log continuations).
        """
        keys = self.sorted_keys
        position = bisect_left(keys, wanted)
        best_len = 0
        best: TokenKey = ()
        for key in keys[max(position - 1, 0) : position + 1]:
            agreed = agreement(key, wanted)
            if agreed > best_len:
                best_len, best = agreed, key
        return best_len, best

    def continuation(self, token_ids: TokenKey) -> RadixNode | PartialLeaf | None:
        """The child or leaf that begins with `token_ids` (or is just that); None if there is none."""
        agreed, key = self.closest(token_ids)
        if agreed < len(token_ids):
            return None
        return self.children.get(key) or self.leaves[key]

    def covered_leaf(self, token_ids: TokenKey) -> PartialLeaf | None:
        """The leaf whose tokens begin `token_ids`. There is one at most, for no leaf begins another."""
        agreed, key = self.closest(token_ids)
        return self.leaves.get(key) if agreed == len(key) else None


@dataclass(eq=False, slots=True)
class PartialLeaf:
    """One block of which only the first len(token_ids) slots hold KV: less than a block, at least one.

    It is never in a table. A sequence that continues it copies the block; so it is never locked, and always evictable.

    Attributes:
        parent: the node it continues; None once it has been dropped.
    """

    token_ids: TokenKey
    block_id: int
    parent: RadixNode | None
    usage: Usage

    @property
    def is_evictable(self) -> bool:
        return self.parent is not None
