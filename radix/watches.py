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
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from .errors import CacheUsageError
from .node import RadixNode, TokenKey
from .tokens import common_prefix_len


@dataclass(eq=False, slots=True)
class PrefixWatch:
    """A standing question: how many tokens, in whole blocks, of token_ids[:limit] does the cache hold?

    Attributes:
        token_ids: the sequence's list, by reference. It must not change while it is watched.
        limit: look at that many tokens only.
        namespace: what they were computed in.
        node: the node that the last cached block is in; the namespace's root if there is none. Always current.
        num_tokens: block size times the number of cached blocks. Always current.
        next_key: the tokens of the block that is not cached; () if less than a block is left.
        is_watching: False once unwatch was called: the other attributes are then those of that moment.
    """

    token_ids: list[int] = field(repr=False)
    limit: int
    namespace: Hashable
    node: RadixNode = field(repr=False)
    num_tokens: int = 0
    next_key: TokenKey = ()
    is_watching: bool = False

    @property
    def place(self) -> Hashable:
        """What the watch waits for: the node, the number of tokens up to there, the tokens of the block that is next.

        Watches with equal places wait for the same block. One that waits for no whole block has a place of its own.
        A running sequence with table `t` is about to compute the block with the place
        (t.node, t.num_committed_tokens, tuple of its next tokens).
        """
        return (self.node, self.num_tokens, self.next_key) if self.next_key else self

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
        runs = [self.node.block_ids]
        end = self.node.end
        ancestor = self.node.parent
        while ancestor is not None:
            runs.append(ancestor.block_ids)
            ancestor = ancestor.parent
        block_ids: list[int] = []
        for run in reversed(runs):
            block_ids += run
        if self.num_tokens < end:
            del block_ids[len(block_ids) * self.num_tokens // end :]
        return block_ids


_ByKey = dict[TokenKey, dict[PrefixWatch, None]]


class Watches:
    """All watches, by the node they are parked at, how many tokens they have, and the block they wait for.

    Inner dicts serve as ordered sets; none of them is ever empty. A watch that moves costs O(block size), and a
    comparison of the tokens it walks over.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._parked: dict[RadixNode, dict[int, _ByKey]] = {}

    def __contains__(self, node: RadixNode) -> bool:
        """Whether a watch is parked at `node`."""
        return node in self._parked

    def parked_at(self, node: RadixNode, num_tokens: int, next_key: TokenKey) -> Collection[PrefixWatch]:
        """The watches with that place. O(1)."""
        return self._parked.get(node, {}).get(num_tokens, {}).get(next_key, {}).keys()

    def park(self, watch: PrefixWatch, node: RadixNode, num_tokens: int) -> None:
        """Enter `watch`, which is nowhere, at `node` with `num_tokens` tokens. O(block size)."""
        end = num_tokens + self._block_size
        watch.node, watch.num_tokens, watch.is_watching = node, num_tokens, True
        watch.next_key = tuple(watch.token_ids[num_tokens:end]) if end <= watch.limit else ()
        by_key = self._parked.setdefault(node, {}).setdefault(num_tokens, {})
        by_key.setdefault(watch.next_key, {})[watch] = None

    def unpark(self, watch: PrefixWatch) -> None:
        """Take `watch` out. O(1)."""
        by_len = self._parked[watch.node]
        by_key = by_len[watch.num_tokens]
        waiting = by_key[watch.next_key]
        del waiting[watch]
        watch.is_watching = False
        if not waiting:
            del by_key[watch.next_key]
            if not by_key:
                del by_len[watch.num_tokens]
                if not by_len:
                    del self._parked[watch.node]

    def on_append(self, node: RadixNode, grown: RadixNode, start: int) -> None:
        """Blocks came behind `node`, where it ended after `start` tokens. They are the end of the run of `grown`: of
        a new child, or of `node` itself. Nothing continues them yet, so no walk leads further."""
        by_len = self._parked.get(node)
        if by_len is None or start not in by_len:
            return
        offset = start - grown.start
        run = grown.token_ids
        waiting = by_len[start].get(tuple(run[offset : offset + self._block_size]))
        for watch in list(waiting or ()):
            limit = min(watch.limit - start, len(run) - offset)
            agreed = common_prefix_len(watch.token_ids, start, run, offset, limit)
            self.unpark(watch)
            self.park(watch, grown, start + agreed // self._block_size * self._block_size)

    def on_split(self, node: RadixNode, head: RadixNode) -> None:
        """`head` has taken the head of the run of `node`."""
        by_len = self._parked.get(node)
        if by_len is None:
            return
        for num_tokens in [num_tokens for num_tokens in by_len if num_tokens <= head.end]:
            by_key = by_len.pop(num_tokens)
            self._parked.setdefault(head, {})[num_tokens] = by_key
            for waiting in by_key.values():
                for watch in waiting:
                    watch.node = head
        if not by_len:
            del self._parked[node]

    def on_trim(self, node: RadixNode) -> None:
        """The run of `node` has become shorter."""
        self._send_back(node, node)

    def on_drop(self, node: RadixNode, parent: RadixNode) -> None:
        """`node` is no more; its parent was `parent`."""
        self._send_back(node, parent)

    def _send_back(self, node: RadixNode, destination: RadixNode) -> None:
        """Those parked at `node` that have more tokens than `destination` go to the end of that."""
        by_len = self._parked.get(node)
        if by_len is None:
            return
        end = destination.end
        for by_key in [by_key for num_tokens, by_key in by_len.items() if num_tokens > end]:
            for watch in [watch for waiting in by_key.values() for watch in waiting]:
                self.unpark(watch)
                self.park(watch, destination, end)

    def entries(self) -> Iterator[tuple[RadixNode, int, TokenKey, PrefixWatch]]:
        """Every watch with the place it is filed under. For checks."""
        for node, by_len in self._parked.items():
            for num_tokens, by_key in by_len.items():
                for next_key, waiting in by_key.items():
                    for watch in waiting:
                        yield node, num_tokens, next_key, watch
