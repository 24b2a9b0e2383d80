"""Watches: how many tokens of waiting sequences are cached, known at every moment without asking again.

A scheduler has a thousand waiting sequences, and decides in each step which of them to start by what the cache holds
for them. Asking for each of them costs a walk of the tree; but in one step hardly any of the answers changes. So an
answer is kept, as a *watch*, and parked in the tree where its walk ended, together with the block it waits for:

                    root                          parked at its end:       {qrst: w1}
                      |
                 [abcdefgh]  (0 1)                behind its first block:  {efxy: w2, efgz: w3}
                      |                           at its end:              {ijkl: w4 w5}
                   [mnop]  (2)                    at its end:              {(): w6}

A walk that ended for want of a block goes on only when that very block is put there. So when the tree gets new blocks
behind a node, one look-up finds the watches that walk on, into the new run: none of the others is touched. w6 has no
whole block left to wait for. Three things move watches without changing what they wait for:

    split   those that end in the head of the run go with it
    trim    those that end in what was cut off go back to the place where the cut is
    drop    those of a node that is dropped go back to the end of its parent

The tree calls the method of that name whenever it does one of these. Each costs one dict look-up if nothing is parked
at the node. A watched root is kept although it is empty, so that there is a place to wait at.

Groups
------
Often hundreds of watches wait for the same block, because their sequences share a long prompt that is just being
computed, and all of them move in every step. So those with the same place are one *group*, which knows the place, and
its watches know the group. A group has one list of tokens to walk by, and knows of each member how many tokens it
certainly has in common with that list. As long as the place and the next block lie within that, the walk of one is the
walk of all: the group moves, and no member is looked at. A member that parts there is compared further, and if it
really parts it walks by itself, to a group of its own or to another that waits where it ends. Groups that are sent back
to one place become one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from .errors import CacheUsageError
from .node import RadixNode, TokenKey
from .tokens import common_prefix_len

LOOKAHEAD_BLOCKS = 16
"""How far a watch that comes to a group by a move is compared with it at a time. One that is new is compared whole,
like its walk; but many may move at once, and part again at the next block."""


@dataclass(eq=False, slots=True)
class WatchGroup:
    """The watches with one place. All but the members' own lists is current at every moment.

    Attributes:
        node: the node that the last cached block is in; the namespace's root if there is none.
        num_tokens: block size times the number of cached blocks.
        next_key: the tokens of the block that is not cached; () if less than a block is left.
        token_ids, limit: the tokens to walk by, those of the watch that was first: token_ids[:limit].
        members: how many tokens each certainly has in common with token_ids[:limit], within its own limit: at least
            those up to the place and of next_key.
        num_common_tokens: none has fewer.
    """

    node: RadixNode = field(repr=False)
    num_tokens: int = 0
    next_key: TokenKey = ()
    token_ids: list[int] = field(default_factory=list, repr=False)
    limit: int = 0
    members: dict[PrefixWatch, int] = field(default_factory=dict, repr=False)
    num_common_tokens: int = 0

    def add(self, watch: PrefixWatch, max_tokens: int) -> None:
        """Take in a watch with the group's place. O(max_tokens), which is how far it is compared."""
        known = self.num_tokens + len(self.next_key)
        num_common = self._agreement(watch, known, max_tokens)
        self.members[watch] = num_common
        self.num_common_tokens = min(self.num_common_tokens, num_common)
        watch.group = self

    def absorb(self, other: WatchGroup, max_tokens: int) -> None:
        """Take in the members of a group with the same place. O(members of it + max_tokens)."""
        known = self.num_tokens + len(self.next_key)
        limit = min(self.limit, other.limit, known + max_tokens)
        agreed = known + common_prefix_len(self.token_ids, known, other.token_ids, known, limit - known)
        for watch, num_common in other.members.items():
            self.members[watch] = min(num_common, agreed)
            watch.group = self
        self.num_common_tokens = min(self.num_common_tokens, other.num_common_tokens, agreed)

    def remove(self, watch: PrefixWatch) -> None:
        """Take out a member. O(1); O(tokens) once in the life of a group: the list it walks by must not change."""
        del self.members[watch]
        if self.members and self.token_ids is watch.token_ids:
            self.token_ids = self.token_ids[: self.limit]

    def part(self, num_tokens: int, max_tokens: int) -> list[PrefixWatch]:
        """Take out the members that do not have the first `num_tokens` tokens in common with the group; return them.

        O(members) where one of them is not known to have; those are compared up to `max_tokens` further.
        """
        if self.num_common_tokens >= num_tokens:
            return []
        parted = []
        for watch, num_common in self.members.items():
            if num_common < num_tokens:
                num_common = self._agreement(watch, num_common, max_tokens)
                self.members[watch] = num_common
                if num_common < num_tokens:
                    parted.append(watch)
        for watch in parted:
            self.remove(watch)
        self.num_common_tokens = min(self.members.values(), default=0)
        return parted

    def _agreement(self, watch: PrefixWatch, known: int, max_tokens: int) -> int:
        """How many tokens the watch has in common with the group, which is at least `known`: look up to max_tokens."""
        limit = min(self.limit, watch.limit, known + max_tokens)
        return known + common_prefix_len(self.token_ids, known, watch.token_ids, known, limit - known)


@dataclass(eq=False, slots=True)
class PrefixWatch:
    """A standing question: how many tokens, in whole blocks, of token_ids[:limit] does the cache hold?

    Attributes:
        token_ids: the sequence's list, by reference. It must not change while it is watched.
        limit: look at that many tokens only.
        namespace: what they were computed in.
        group: has the answer; shared by all watches with the same place. Always current.
        is_watching: False once unwatch was called: the answer is then that of that moment.
    """

    token_ids: list[int] = field(repr=False)
    limit: int
    namespace: Hashable
    group: WatchGroup
    is_watching: bool = False

    @property
    def node(self) -> RadixNode:
        """The node that the last cached block is in; the namespace's root if there is none."""
        return self.group.node

    @property
    def num_tokens(self) -> int:
        """Block size times the number of cached blocks."""
        return self.group.num_tokens

    @property
    def next_key(self) -> TokenKey:
        """The tokens of the block that is not cached; () if less than a block is left."""
        return self.group.next_key

    @property
    def place(self) -> Hashable:
        """What the watch waits for: the node, the number of tokens up to there, the tokens of the block that is next.

        Watches with equal places wait for the same block. One that waits for no whole block has a place of its own.
        A running sequence with table `t` is about to compute the block with the place
        (t.node, t.num_committed_tokens, tuple of its next tokens).
        """
        group = self.group
        return (group.node, group.num_tokens, group.next_key) if group.next_key else self

    def check_live(self) -> None:
        """Raise CacheUsageError if the watch has ended."""
        if not self.is_watching:
            raise CacheUsageError("the watch has ended: start another one with PrefixCache.watch")

    def check_asks(self, token_ids: Sequence[int], limit: int, namespace: Hashable) -> None:
        """Raise CacheUsageError unless the watch is live and asks for just this."""
        self.check_live()
        if self.token_ids is not token_ids or self.limit != limit or self.namespace != namespace:
            raise CacheUsageError(
                f"the watch is of {self.limit} tokens in namespace={self.namespace!r}, the match is to be of {limit} "
                f"in namespace={namespace!r}: pass the very list and the arguments that were passed to watch"
            )

    def block_ids(self) -> list[int]:
        """The cached blocks. O(blocks)."""
        node, num_tokens = self.group.node, self.group.num_tokens
        runs = [node.block_ids]
        end = node.end
        ancestor = node.parent
        while ancestor is not None:
            runs.append(ancestor.block_ids)
            ancestor = ancestor.parent
        block_ids: list[int] = []
        for run in reversed(runs):
            block_ids += run
        if num_tokens < end:
            del block_ids[len(block_ids) * num_tokens // end :]
        return block_ids


_ByKey = dict[TokenKey, WatchGroup]


class Watches:
    """All watches in their groups, by the node these are parked at, how many tokens they have, and the block they wait
    for. No dict is ever empty, and no group.

    Attributes:
        lookahead: a watch that comes to a group by a move is compared with it over that many tokens at a time.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.lookahead = LOOKAHEAD_BLOCKS * block_size
        self._parked: dict[RadixNode, dict[int, _ByKey]] = {}

    def __contains__(self, node: RadixNode) -> bool:
        """Whether a watch is parked at `node`."""
        return node in self._parked

    def group_at(self, node: RadixNode, num_tokens: int, next_key: TokenKey) -> WatchGroup | None:
        """The watches with that place. O(1)."""
        return self._parked.get(node, {}).get(num_tokens, {}).get(next_key)

    def start(
        self, token_ids: list[int], limit: int, namespace: Hashable, node: RadixNode, num_tokens: int
    ) -> PrefixWatch:
        """A watch over token_ids[:limit], of which the cache has `num_tokens`, up to `node`. O(tokens)."""
        watch = PrefixWatch(token_ids, limit, namespace, WatchGroup(node))
        self._park(watch, node, num_tokens, max_tokens=limit)
        watch.is_watching = True
        return watch

    def end(self, watch: PrefixWatch) -> None:
        """Take `watch` out. O(1)."""
        group = watch.group
        group.remove(watch)
        if not group.members:
            self._take(group)
        watch.group = WatchGroup(group.node, group.num_tokens, group.next_key)
        watch.is_watching = False

    def on_append(self, node: RadixNode, grown: RadixNode, start: int) -> None:
        """Blocks came behind `node`, where it ended after `start` tokens. They are the end of the run of `grown`: of
        a new child, or of `node` itself. Nothing continues them yet, so no walk leads further.

        O(new tokens) for all that have them in common; for each other one O(new tokens + block size).
        """
        by_len = self._parked.get(node)
        if by_len is None or start not in by_len:
            return
        offset = start - grown.start
        group = by_len[start].get(tuple(grown.token_ids[offset : offset + self._block_size]))
        if group is None:
            return
        self._take(group)
        num_tokens = self._walk(group, grown, start)
        parted = group.part(num_tokens + self._block_size, self.lookahead)
        if group.members:
            self._put(group, grown, num_tokens)
        for watch in parted:
            self._park(watch, grown, self._walk(watch, grown, start), self.lookahead)

    def on_split(self, node: RadixNode, head: RadixNode) -> None:
        """`head` has taken the head of the run of `node`. O(groups)."""
        by_len = self._parked.get(node)
        if by_len is None:
            return
        for num_tokens in [num_tokens for num_tokens in by_len if num_tokens <= head.end]:
            by_key = by_len.pop(num_tokens)
            self._parked.setdefault(head, {})[num_tokens] = by_key
            for group in by_key.values():
                group.node = head
        if not by_len:
            del self._parked[node]

    def on_trim(self, node: RadixNode) -> None:
        """The run of `node` has become shorter."""
        self._send_back(node, node)

    def on_drop(self, node: RadixNode, parent: RadixNode) -> None:
        """`node` is no more; its parent was `parent`."""
        self._send_back(node, parent)

    def _send_back(self, node: RadixNode, destination: RadixNode) -> None:
        """Those parked at `node` that have more tokens than `destination` go to the end of that: to one place, for the
        block they had there was the same."""
        by_len = self._parked.get(node)
        if by_len is None:
            return
        end = destination.end
        groups = [group for num_tokens, by_key in by_len.items() if num_tokens > end for group in by_key.values()]
        for group in groups:
            self._take(group)
            self._put(group, destination, end)

    def _walk(self, walker: PrefixWatch | WatchGroup, grown: RadixNode, start: int) -> int:
        """How many tokens, in whole blocks, are cached of one that has all before `start`, now that `grown` goes on."""
        offset, run = start - grown.start, grown.token_ids
        limit = min(walker.limit - start, len(run) - offset)
        agreed = common_prefix_len(walker.token_ids, start, run, offset, limit)
        return start + agreed // self._block_size * self._block_size

    def _park(self, watch: PrefixWatch, node: RadixNode, num_tokens: int, max_tokens: int) -> None:
        """Enter `watch`, which is nowhere, into the group at `node` with `num_tokens` tokens, or into a new one."""
        key = self._next_key(watch, num_tokens)
        group = self.group_at(node, num_tokens, key)
        if group is None:
            group = WatchGroup(node, token_ids=watch.token_ids, limit=watch.limit, num_common_tokens=watch.limit)
            group.members[watch] = watch.limit
            watch.group = group
            self._put(group, node, num_tokens)
        else:
            group.add(watch, max_tokens)

    def _put(self, group: WatchGroup, node: RadixNode, num_tokens: int) -> None:
        """File `group`, which is nowhere, at `node` with `num_tokens` tokens; the smaller one of two becomes part of
        the other."""
        group.node, group.num_tokens, group.next_key = node, num_tokens, self._next_key(group, num_tokens)
        by_key = self._parked.setdefault(node, {}).setdefault(num_tokens, {})
        other = by_key.get(group.next_key)
        if other is not None:
            if len(other.members) > len(group.members):
                group, other = other, group
            group.absorb(other, self.lookahead)
        by_key[group.next_key] = group

    def _take(self, group: WatchGroup) -> None:
        """Undo `_put`. O(1)."""
        by_len = self._parked[group.node]
        by_key = by_len[group.num_tokens]
        del by_key[group.next_key]
        if not by_key:
            del by_len[group.num_tokens]
            if not by_len:
                del self._parked[group.node]

    def _next_key(self, walker: PrefixWatch | WatchGroup, num_tokens: int) -> TokenKey:
        end = num_tokens + self._block_size
        return tuple(walker.token_ids[num_tokens:end]) if end <= walker.limit else ()

    def entries(self) -> Iterator[tuple[RadixNode, int, TokenKey, WatchGroup]]:
        """Every group with the place it is filed under. For checks."""
        for node, by_len in self._parked.items():
            for num_tokens, by_key in by_len.items():
                for next_key, group in by_key.items():
                    yield node, num_tokens, next_key, group
