"""RadixTree: finds the longest cached prefix of a list of token ids, exact to the token, in blocks of 16.

What is stored
--------------
The KV cache is cut into blocks of a fixed number of token slots: 16 in the engine, 4 in the pictures here. The key and
value of a token depend on every token before it, so a block can be used again exactly where all tokens up to its end
are the same. That is a question about prefixes, and a radix tree answers it. An edge of this one is a run of *whole
blocks*: block ids with the token ids whose KV they hold. No hash stands for the tokens, so nothing can collide.

Three sequences have been computed, in blocks of 4; letters are tokens, numbers are block ids:

    A: a b c d  e f g h  i j k l          B: a b c d  e f g h  m n o p          C: a b c d  e f x y

                      root
                       |
                  [abcd]  (0)                     a node: tokens and blocks
                   |        |
           [efgh] (1)     [efxy] (4)              two children may begin with the same tokens: e f
            |      |
     [ijkl] (2)  [mnop] (3)

Runs part on block boundaries only. Where two sequences differ *inside* a block, as B and C do after `e f`, each has a
block of its own. For this reason a child is found by the tokens of its whole first block, not by its first token.

Token-exact, all the same
-------------------------
Say a new sequence reads `a b c d e f g z`. Blocks let it share (0), and leave 3 more known tokens, `e f g`, unused.
With 16 slots to a block that loses 7.5 tokens a request on average: a good part of each turn of a chat, and with it the
rule "this turn computes its own new tokens only". So after the last whole block the search goes on inside the next one.
Block (1) agrees in 3 tokens. The sequence gets a private block, the 3 slots are copied from (1), and the fourth is
computed. The source is only read.

The end of a finished sequence is seldom a block boundary. Its last block, with 1 to 15 computed tokens, is kept as a
*partial leaf* behind the node. It can be copied from, but is in no table:

     [ijkl] (2) ... [qr] (5)

A partial leaf whose tokens begin another leaf or block in the same place says nothing new: it is dropped.

The numbered algorithm (the code below cites the steps)
-------------------------------------------------------
walk: the whole blocks that agree. Pure.
  1. While at least one block of tokens is left, look up the child by the next block. None: the walk ends here, at the
     end of a node.
  2. If the child's whole run agrees, take all its blocks and go on from it.
  3. Otherwise take the blocks that agree. The walk ends inside the child, on a block boundary. Nothing is split yet:
     a question must not change the tree, and most answers are never used.

best_tail: the agreement of less than a block, behind the end of the walk. Pure.
  4. Inside a run: only the run's next block can agree.
  5. At the end of a node: the first blocks of its children, and its partial leaves. They are kept in lexicographic
     order, so the best one is a neighbour of the place where the wanted tokens would stand, and a thousand
     continuations cost ten comparisons. (The blocks of running sequences: see open_tables.py.)

split: makes a boundary inside a run the end of a node.
  6. A new node takes the head of the run and the place under the parent. The old one keeps its identity, its tail,
     its continuations and its locks, for tables point to it. The new one is locked as often as the old: whoever uses
     the tail uses the head.

             [abcdefghijkl] (0 1 2)    split at 4      [abcd] (0)
                   |                  ----------->         |
                  ...                                  [efghijkl] (1 2)
                                                           |
                                                          ...

append: whole blocks that a running sequence has computed behind `node`.
  7. A partial leaf that the first new block covers is dropped by the caller before (drop_covered_leaf).
  8. If the sequence is the only one on the node, nothing continues it, and it is to be kept as long as the new blocks,
     the run just grows. So a long generation is one node, and not one for each block.
  9. Otherwise the blocks become a new child, locked by the sequence.

descend: a running sequence has computed blocks that somebody else has put into the tree already.
 10. As 1 to 3, but over one edge, and a run that agrees in part is split (6) so that the sequence ends on a node.

evict: gives back blocks, least valuable first.
 11. Candidates are partial leaves and unlocked nodes without continuations. The queue yields the one with the
     lowest retention, and of these the one with the smallest key of the policy (eviction/queue.py).
 12. A node is trimmed from its end, as many blocks as are asked for. What is left of it is queued again.
 13. A node that lost its last continuation becomes a candidate, if nothing runs on it.

Locks
-----
A running sequence locks the path of the node it stands on. A lock count is thus never larger than the parent's, an
unlocked node has only unlocked nodes under it, and the number of evictable blocks is that of all tree blocks less those
in locked nodes. It is kept as a running count.

Watches
-------
How much of a waiting sequence's prefix is cached is kept current rather than asked again: append, split, trim and drop
tell the watches at that node (watches.py).

Expectations
------------
When a prefix is used next, as far as somebody knows, is kept at the node or leaf it ends with: a piece that is dropped
hands it to its parent (expectations.py). A run that ends an expected prefix does not grow (8): what is put behind it is
not expected.

Costs, for n tokens: walk O(n) token comparisons, done by slices, and one dict lookup a node; lock, unlock and touch
O(nodes on the path); split O(run); append O(new blocks); evict O(blocks + log leaves).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from .eviction import EvictionPolicy, EvictionQueue, Usage
from .expectations import MAX_TURNOVERS, Expectations
from .node import PartialLeaf, RadixNode, TokenKey, agreement
from .retention import DEFAULT_RETENTION
from .tokens import common_prefix_len
from .walk import Tail, Walk
from .watches import PrefixWatch, Watches


class RadixTree:
    """One radix tree for each namespace, with shared eviction.

    It knows tokens, block ids and locks, not which are free: the caller frees what methods drop and return.

    Attributes:
        roots: the root of each namespace that holds or runs something.
        watches: the standing questions of those who wait.
        expectations: which prefixes somebody expects to be used again, and when.
        num_locked_blocks: blocks in locked nodes.
        num_splits: how many nodes were split. Positions inside nodes found earlier are stale once this has moved.
        on_evict: called before `evict` drops whole blocks: with their node, and how many of its last ones they are.
    """

    def __init__(self, block_size: int, policy: EvictionPolicy, max_pieces: int) -> None:
        self.block_size = block_size
        self.policy = policy
        self.roots: dict[Hashable, RadixNode] = {}
        self.watches = Watches(block_size)
        self.num_locked_blocks = 0
        self.num_splits = 0
        self.on_evict: Callable[[RadixNode, int], None] | None = None
        self._namespace_of: dict[RadixNode, Hashable] = {}
        self._queue: EvictionQueue[RadixNode | PartialLeaf] = EvictionQueue(policy, max_pieces)
        self.expectations = Expectations(MAX_TURNOVERS * max_pieces, self._queue.lower)
        self._now = 0

    # ---- questions -------------------------------------------------------------------------------------------------

    def find_root(self, namespace: Hashable) -> RadixNode:
        """The namespace's root, or an empty one that is not in the tree. Mutates nothing."""
        return self.roots.get(namespace) or RadixNode(0, [], [], None, Usage(0, 0))

    def walk(self, root: RadixNode, token_ids: list[int], limit: int) -> Walk:
        """The whole blocks that agree with token_ids[:limit] (steps 1 to 3). Mutates nothing."""
        block_size = self.block_size
        node, position, block_ids = root, 0, []
        while limit - position >= block_size:
            child = node.children.get(tuple(token_ids[position : position + block_size]))  # 1
            if child is None:
                break
            run = child.token_ids
            end = position + len(run)
            if end <= limit and (len(run) == block_size or token_ids[position:end] == run):  # 2
                node, position = child, end
                block_ids += child.block_ids
                continue
            agreed = common_prefix_len(token_ids, position, run, 0, min(len(run), limit - position)) // block_size  # 3
            block_ids += child.block_ids[:agreed]
            return Walk(child, agreed, block_ids)
        return Walk(node, len(node.block_ids), block_ids)

    def walk_to(self, watch: PrefixWatch) -> Walk:
        """What `walk` would return for the watch's tokens. O(blocks). Mutates nothing."""
        return Walk(watch.node, (watch.num_tokens - watch.node.start) // self.block_size, watch.block_ids())

    def best_tail(self, walk: Walk, token_ids: list[int], position: int, limit: int) -> Tail:
        """The block behind the walk's end that agrees with the most of token_ids[position:limit]. Mutates nothing."""
        wanted = tuple(token_ids[position : min(limit, position + self.block_size)])
        if not wanted:
            return Tail()
        node, num_node_blocks = walk.node, walk.num_node_blocks
        if num_node_blocks < len(node.block_ids):  # 4
            offset = num_node_blocks * self.block_size
            agreed = agreement(wanted, tuple(node.token_ids[offset : offset + len(wanted)]))
            return Tail(agreed, node.block_ids[num_node_blocks], node) if agreed else Tail()
        agreed, key = node.closest(wanted)  # 5
        if agreed == 0:
            return Tail()
        child = node.children.get(key)
        if child is not None:
            return Tail(agreed, child.block_ids[0], child)
        leaf = node.leaves[key]
        return Tail(agreed, leaf.block_id, leaf)

    def root_of(self, node: RadixNode) -> RadixNode:
        while node.parent is not None:
            node = node.parent
        return node

    def namespace_of(self, node: RadixNode) -> Hashable:
        return self._namespace_of[self.root_of(node)]

    def num_newly_locked_blocks(self, node: RadixNode, num_node_blocks: int) -> int:
        """How many evictable blocks would be evictable no more if the first blocks of `node` were locked."""
        count = 0
        ancestor: RadixNode | None = node
        while ancestor is not None and ancestor.lock_count == 0:
            count += num_node_blocks if ancestor is node else len(ancestor.block_ids)
            ancestor = ancestor.parent
        return count

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes, roots included, each before its children. O(nodes): for checks and displays."""
        stack = list(self.roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def queued(self) -> Iterator[tuple[tuple[int, ...], RadixNode | PartialLeaf]]:
        """The entries of the eviction queue with the keys they are stored under, in no order. For checks."""
        return self._queue.entries()

    # ---- locks and use ---------------------------------------------------------------------------------------------

    def lock(self, node: RadixNode, until: RadixNode | None = None) -> None:
        """Lock the path from `node` up to its root, or up to and without `until`."""
        ancestor: RadixNode | None = node
        while ancestor is not until and ancestor is not None:
            if ancestor.lock_count == 0:
                self.num_locked_blocks += len(ancestor.block_ids)
            ancestor.lock_count += 1
            ancestor = ancestor.parent

    def unlock(self, node: RadixNode) -> None:
        """Undo one lock of the path. Nodes that nothing runs on or continues become candidates for eviction (13)."""
        ancestor: RadixNode | None = node
        while ancestor is not None:
            assert ancestor.lock_count > 0, "unlock without a lock"
            ancestor.lock_count -= 1
            if ancestor.lock_count == 0:
                self.num_locked_blocks -= len(ancestor.block_ids)
                self._settle(ancestor)
            ancestor = ancestor.parent

    def touch(self, node: RadixNode, priority: int, is_hit: bool, tail: RadixNode | PartialLeaf | None = None) -> None:
        """Record an access to the path of `node`, and to the piece that `tail` tokens are copied from."""
        self._now += 1
        if tail is not None:
            tail.usage.touch(self._now, priority, is_hit)
        ancestor: RadixNode | None = node
        while ancestor is not None:
            ancestor.usage.touch(self._now, priority, is_hit)
            ancestor = ancestor.parent

    # ---- watches ---------------------------------------------------------------------------------------------------

    def watch(self, namespace: Hashable, token_ids: list[int], limit: int) -> PrefixWatch:
        """A watch over token_ids[:limit]. Makes the namespace's root if there is none, and keeps it."""
        root = self.root(namespace)
        walk = self.walk(root, token_ids, limit)
        return self.watches.start(token_ids, limit, namespace, walk.node, len(walk.block_ids) * self.block_size)

    def unwatch(self, watch: PrefixWatch) -> None:
        self.watches.end(watch)
        self._settle(watch.node)

    # ---- growth ----------------------------------------------------------------------------------------------------

    def root(self, namespace: Hashable) -> RadixNode:
        """The namespace's root, made if there is none."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = RadixNode(0, [], [], None, Usage(self._now, self._now))
            self._namespace_of[root] = namespace
        return root

    def split(self, node: RadixNode, num_node_blocks: int) -> RadixNode:
        """The node that ends `num_node_blocks` blocks into `node`: itself, or a new one for the head of its run (6)."""
        if num_node_blocks == len(node.block_ids):
            return node
        parent = node.parent
        assert parent is not None
        assert 0 < num_node_blocks < len(node.block_ids)
        self.num_splits += 1
        cut = num_node_blocks * self.block_size
        head = RadixNode(node.start, node.token_ids[:cut], node.block_ids[:num_node_blocks], parent, node.usage.copy())
        head.lock_count = node.lock_count
        parent.children[self._key(head)] = head
        del node.token_ids[:cut], node.block_ids[:num_node_blocks]
        node.start += cut
        node.parent = head
        head.add_child(self._key(node), node)
        self.watches.on_split(node, head)
        return head

    def descend(self, node: RadixNode, token_ids: list[int], start: int, end: int) -> RadixNode | None:
        """The child of `node` that agrees with whole blocks of token_ids[start:end], split where they part (10)."""
        child = node.children.get(tuple(token_ids[start : start + self.block_size]))
        if child is None:
            return None
        limit = min(len(child.token_ids), end - start)
        return self.split(child, common_prefix_len(token_ids, start, child.token_ids, 0, limit) // self.block_size)

    def append(
        self, node: RadixNode, token_ids: list[int], block_ids: list[int], priority: int, retention: int
    ) -> RadixNode:
        """Put new blocks behind `node`, on which their sequence stands; returns the node that ends with them (8, 9)."""
        assert len(token_ids) == len(block_ids) * self.block_size
        self.num_locked_blocks += len(block_ids)
        start = node.end
        can_grow = node.lock_count == 1 and node.parent is not None and not node.sorted_keys
        if can_grow and node.usage.retention == retention and node not in self.expectations:  # 8
            node.token_ids += token_ids
            node.block_ids += block_ids
            self.watches.on_append(node, node, start)
            return node
        child = RadixNode(start, token_ids, block_ids, node, self._new_usage(priority, retention), lock_count=1)  # 9
        node.add_child(self._key(child), child)
        self.watches.on_append(node, child, start)
        return child

    def add_leaf(
        self, node: RadixNode, token_ids: TokenKey, block_id: int, priority: int, retention: int = DEFAULT_RETENTION
    ) -> PartialLeaf:
        """Keep a partial block behind `node`, where no continuation may begin with its tokens."""
        assert 0 < len(token_ids) < self.block_size
        leaf = PartialLeaf(token_ids, block_id, node, self._new_usage(priority, retention))
        node.add_leaf(leaf)
        self._queue.push(leaf)
        return leaf

    # ---- shrinking -------------------------------------------------------------------------------------------------

    def drop_covered_leaf(self, node: RadixNode, token_ids: TokenKey) -> PartialLeaf | None:
        """Drop the partial leaf of `node` whose tokens begin `token_ids`, if there is one, and return it (7)."""
        leaf = node.covered_leaf(token_ids)
        if leaf is not None:
            node.remove_leaf(leaf)
            leaf.parent = None
            self.expectations.on_drop(leaf, node)
        return leaf

    def evict(self, num_blocks: int) -> list[int]:
        """Drop up to `num_blocks` evictable blocks, least valuable first; returns them (11 to 13)."""
        self.expectations.on_eviction(num_blocks)
        evicted: list[int] = []
        while len(evicted) < num_blocks:
            piece = self._queue.pop()  # 11
            if piece is None:
                break
            parent = piece.parent
            assert parent is not None
            if isinstance(piece, PartialLeaf):
                parent.remove_leaf(piece)
                piece.parent = None
                self.expectations.on_drop(piece, parent)
                evicted.append(piece.block_id)
                self._settle(parent)
            else:
                num_trimmed = min(num_blocks - len(evicted), len(piece.block_ids))
                if self.on_evict is not None:
                    self.on_evict(piece, num_trimmed)
                evicted += self._trim(piece, num_trimmed)  # 12
        return evicted

    def prune(self, node: RadixNode) -> list[int]:
        """Drop `node` and its ancestors as far as nothing runs on or continues them; returns their blocks."""
        dropped: list[int] = []
        ancestor: RadixNode | None = node
        while ancestor is not None and ancestor.is_evictable:
            parent = ancestor.parent
            dropped += self._trim(ancestor, len(ancestor.block_ids))
            ancestor = parent
        return dropped

    def _trim(self, node: RadixNode, num_blocks: int) -> list[int]:
        kept = len(node.block_ids) - num_blocks
        if kept > 0:
            dropped = node.block_ids[kept:]
            del node.block_ids[kept:], node.token_ids[kept * self.block_size :]
            self.watches.on_trim(node)
            self._queue.push(node)
            return dropped[::-1]
        parent = node.parent
        assert parent is not None
        parent.remove_child(self._key(node))
        node.parent = None
        self.watches.on_drop(node, parent)
        self.expectations.on_drop(node, parent)
        self._settle(parent)
        return node.block_ids[::-1]

    def _settle(self, node: RadixNode) -> None:
        """`node` has lost a lock, a continuation or a watch: it may now be a candidate (13), or a root to forget."""
        if node.is_evictable:
            self._queue.push(node)
        elif node in self._namespace_of and not (node.lock_count or node.sorted_keys or node in self.watches):
            del self.roots[self._namespace_of.pop(node)]

    def _key(self, node: RadixNode) -> TokenKey:
        return tuple(node.token_ids[: self.block_size])

    def _new_usage(self, priority: int, retention: int) -> Usage:
        return Usage(self._now, self._now, priority=priority, retention=retention)
