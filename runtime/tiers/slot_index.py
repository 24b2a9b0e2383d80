"""SlotIndex: which prefixes lie in which slots, and which slot is given up next.

A trie of blocks for each namespace. A block is found by its own tokens behind its parent, so a path spells the whole
prefix and nothing can be mistaken for something else. A tier has a number of slots of one size; an entry has one of
them, or none: then it only stands in the path of others (what the pool evicts is the end of a prefix, whose beginning
stays in the pool).

Least recently used goes first. Whatever uses a prefix moves its blocks to the fresh end of the order, the last one
first. So every block is fresher than those that go on from it, and the stalest of all never has any in a slot.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

NO_SLOT = -1


@dataclass(eq=False, slots=True)
class Entry:
    """A block of a prefix, or the root of a namespace.

    Attributes:
        key: its tokens, as int32 in bytes; in a root nothing.
        slot: where its data lies, or NO_SLOT.
    """

    parent: Entry | None
    key: bytes
    slot: int = NO_SLOT
    children: dict[bytes, Entry] = field(default_factory=dict)


class SlotIndex:
    """Entries over `num_slots` slots, for blocks of `block_size` tokens."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self.num_slots = num_slots
        self._key_bytes = 4 * block_size
        self._block_size = block_size
        self._roots: dict[Hashable, Entry] = {}
        self._namespace_of: dict[Entry, Hashable] = {}
        self._by_use: OrderedDict[Entry, None] = OrderedDict()  # those with a slot, the stalest first
        self._free_slots = list(range(num_slots - 1, -1, -1))

    @property
    def num_used_slots(self) -> int:
        return len(self._by_use)

    def keys(self, token_ids: Sequence[int], end: int) -> list[bytes]:
        """The keys of the first `end` blocks."""
        data = array("i", token_ids[: end * self._block_size]).tobytes()
        size = self._key_bytes
        return [data[place : place + size] for place in range(0, len(data) - size + 1, size)]

    def path(self, namespace: Hashable, keys: Sequence[bytes]) -> list[Entry]:
        """The entries of the first blocks, as far as there are any. O(their number)."""
        found: list[Entry] = []
        entry = self._roots.get(namespace)
        if entry is None:
            return found
        for key in keys:
            entry = entry.children.get(key)
            if entry is None:
                break
            found.append(entry)
        return found

    def touch(self, path: Sequence[Entry]) -> None:
        """Count a use of a whole path."""
        by_use = self._by_use
        for entry in reversed(path):
            if entry.slot != NO_SLOT:
                by_use.move_to_end(entry)

    def add(self, namespace: Hashable, keys: Sequence[bytes], start: int) -> tuple[list[Entry], int]:
        """Give a slot to the blocks from `start` on that have none, as far as there is room beside their own prefix.
        A use of the whole path.

        Returns:
            The entries that got a slot, in order; and how many others lost theirs for them.
        """
        path = self._make_path(namespace, keys)
        self.touch(path)
        room = self.num_slots - sum(entry.slot != NO_SLOT for entry in path)
        added: list[Entry] = []
        evicted: list[Entry] = []
        for entry in path[start:]:
            if entry.slot != NO_SLOT:
                continue
            if len(added) == room:
                break
            if not self._free_slots:
                evicted.append(next(iter(self._by_use)))
                self._take_out(evicted[-1])
            entry.slot = self._free_slots.pop()
            self._by_use[entry] = None
            added.append(entry)
        self.touch(path)
        for entry in (path[-1], *evicted):  # not before: what was evicted may go on from a block that has no slot yet
            self._prune(entry)
        return added, len(evicted)

    def attach(self, parent: Entry | None, namespace: Hashable, key: bytes, slot: int) -> Entry | None:
        """While a store is opened: enter a block whose data is in a slot already; None if its place is taken.

        Args:
            parent: the entry before; None for the first block of the namespace.
        """
        above = self._root(namespace) if parent is None else parent
        if key in above.children:
            return None
        entry = above.children[key] = Entry(above, key, slot)
        return entry

    def set_order(self, entries: Iterable[Entry]) -> None:
        """Once all are attached: say in which order they were used, every block after those that go on from it."""
        self._by_use = OrderedDict.fromkeys(entries)
        used = {entry.slot for entry in self._by_use}
        self._free_slots = [slot for slot in range(self.num_slots - 1, -1, -1) if slot not in used]

    def drop(self, entry: Entry) -> list[int]:
        """Take out an entry and all that go on from it. Returns the slots that are free now."""
        freed = self._take_out(entry)
        self._prune(entry)
        return freed

    def clear(self) -> None:
        self._roots.clear()
        self._namespace_of.clear()
        self._by_use.clear()
        self._free_slots = list(range(self.num_slots - 1, -1, -1))

    def entries(self) -> Iterator[Entry]:
        """Those with a slot, the stalest first."""
        return iter(self._by_use)

    def _make_path(self, namespace: Hashable, keys: Sequence[bytes]) -> list[Entry]:
        entry = self._root(namespace)
        path: list[Entry] = []
        for key in keys:
            child = entry.children.get(key)
            if child is None:
                child = entry.children[key] = Entry(entry, key)
            path.append(child)
            entry = child
        return path

    def _root(self, namespace: Hashable) -> Entry:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Entry(None, b"")
            self._namespace_of[root] = namespace
        return root

    def _take_out(self, entry: Entry) -> list[int]:
        freed: list[int] = []
        stack = [entry]
        while stack:
            each = stack.pop()
            stack += each.children.values()
            each.children = {}
            if each.slot != NO_SLOT:
                freed.append(each.slot)
                del self._by_use[each]
                each.slot = NO_SLOT
        self._free_slots += freed
        return freed

    def _prune(self, entry: Entry) -> None:
        """Forget an entry, and those before it, as far as they have no slot and lead to none."""
        while entry.slot == NO_SLOT and not entry.children:
            parent = entry.parent
            if parent is None:
                if entry in self._namespace_of:
                    del self._roots[self._namespace_of.pop(entry)]
                return
            if parent.children.get(entry.key) is entry:
                del parent.children[entry.key]
            entry = parent
