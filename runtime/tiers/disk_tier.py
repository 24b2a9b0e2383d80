"""DiskTier: finished prefixes in a directory, for processes to come.

The index in memory is the truth: it is read from the headers when the store is opened, belongs to the engine's thread,
and compares tokens. A slot that is being written is in it, so that it is not offered again, and becomes loadable when
the writer says that it is there. Data is compared with its digest whenever it is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import PrefixesKeptError
from .base import TierStats
from .disk_format import SlotHeader, block_name, digest, namespace_digest
from .disk_store import DiskStore
from .disk_writer import DiskWriter, SlotWrite
from .host_copy import HostCopy
from .slot_index import Entry, SlotIndex

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Stored:
    """What is in a slot, or about to be.

    Attributes:
        name: see `block_name`.
        data_digest: None while it is being written.
        number: of the write; 0 if another process wrote it.
    """

    entry: Entry
    name: bytes
    data_digest: bytes | None
    number: int = 0


class DiskTier:
    """Implements `base.KVTier` over a store, which it owns."""

    name = "disk"
    takes: Literal["finished", "evicted"] = "finished"

    def __init__(self, store: DiskStore, block_size: int) -> None:
        self._store = store
        self._index = SlotIndex(store.num_slots, block_size)
        self._stored: dict[int, _Stored] = {}
        self._num_writes = 0
        self._stats = TierStats(max_held_blocks=store.num_slots)
        self._is_closed = False
        self._read_headers()
        self._writer = DiskWriter(store) if store.is_writer and store.num_slots else None

    @property
    def stats(self) -> TierStats:
        self._take_in_written()
        return replace(self._stats, num_held_blocks=self._index.num_used_slots)

    def num_held(self, namespace: Hashable, token_ids: list[int], start: int, end: int) -> int:
        self._take_in_written()
        return len(self._loadable(self._path(namespace, token_ids, end), start))

    def load(self, namespace: Hashable, token_ids: list[int], start: int, end: int) -> Tensor:
        self._take_in_written()
        path = self._path(namespace, token_ids, end)
        entries = self._loadable(path, start)
        rows = np.empty((len(entries), self._store.bytes_per_block), dtype=np.uint8)
        num_loaded = 0
        for entry, row in zip(entries, rows, strict=True):
            if not self._store.read(entry.slot, row) or digest(row.data) != self._stored[entry.slot].data_digest:
                self._drop_damaged(entry)
                break
            num_loaded += 1
        used = path[: start + num_loaded]
        self._index.touch(used)
        if self._writer is not None and num_loaded:
            self._writer.put_stamp([entry.slot for entry in used])
        self._stats.num_hits += num_loaded > 0
        self._stats.num_loaded_blocks += num_loaded
        self._stats.num_loaded_bytes += num_loaded * self._store.bytes_per_block
        return torch.from_numpy(rows[:num_loaded])

    def prefetch(self, namespace: Hashable, token_ids: list[int], end: int) -> None:
        self._store.prefetch([entry.slot for entry in self._loadable(self._path(namespace, token_ids, end), 0)])

    def wanted(self, namespace: Hashable, token_ids: list[int], start: int, end: int) -> range:
        writer = self._writer
        if writer is None or namespace_digest(namespace) is None:
            return range(0)
        self._take_in_written()
        path = self._path(namespace, token_ids, end)
        self._index.touch(path)
        first = len(path)
        if first < start:  # nothing is kept without what it goes on from
            return range(0)
        stop = min(end, first + writer.room_bytes // self._store.bytes_per_block)
        self._stats.num_refused_blocks += end - stop
        return range(first, stop)

    def offer(self, namespace: Hashable, token_ids: list[int], start: int, blocks: Tensor) -> None:
        digest_of_namespace = namespace_digest(namespace)
        assert self._writer is not None
        assert digest_of_namespace is not None
        data = HostCopy(blocks)  # before anything is entered: it may raise
        keys = self._index.keys(token_ids, start + len(blocks))
        added, num_evicted = self._index.add(digest_of_namespace, keys, start)
        self._stats.num_evicted_blocks += num_evicted
        writes: list[SlotWrite] = []
        for row, entry in enumerate(added):
            parent = entry.parent
            assert parent is not None
            above = digest_of_namespace if parent.parent is None else self._stored[parent.slot].name
            self._num_writes += 1
            self._stored[entry.slot] = _Stored(entry, block_name(above, entry.key), None, self._num_writes)
            writes.append(SlotWrite(entry.slot, self._num_writes, above, digest_of_namespace, entry.key, row))
        if writes:
            self._writer.put_blocks(writes, data)

    def clear(self) -> Future[None]:
        self._index.clear()
        self._stored.clear()
        if self._writer is not None:
            return self._writer.put_clear()
        done: Future[None] = Future()
        if self._store.is_writer:  # and there is room for nothing
            done.set_result(None)
        else:
            done.set_exception(
                PrefixesKeptError(
                    f"{self._store.path.parent}: the prefixes stored there stay, for this process only reads them: "
                    "flush the cache of the one that stores them, or end all that use it and delete it"
                )
            )
        return done

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._writer is not None:
            self._writer.close()
            self._take_in_written()
        self._store.close()

    def _path(self, namespace: Hashable, token_ids: list[int], end: int) -> list[Entry]:
        found = namespace_digest(namespace)
        return [] if found is None else self._index.path(found, self._index.keys(token_ids, end))

    def _loadable(self, path: list[Entry], start: int) -> list[Entry]:
        entries: list[Entry] = []
        for entry in path[start:]:
            if self._stored[entry.slot].data_digest is None:
                break
            entries.append(entry)
        return entries

    def _take_in_written(self) -> None:
        if self._writer is None:
            return
        written = self._writer.written
        while written:
            done = written.popleft()
            stored = self._stored.get(done.slot)
            if stored is None or stored.number != done.number:  # it was given up meanwhile
                continue
            stored.data_digest = done.data_digest
            if done.data_digest is None:
                self._stats.num_failed_blocks += len(self._drop(stored.entry))
            else:
                self._stats.num_stored_blocks += 1
                self._stats.num_stored_bytes += self._store.bytes_per_block

    def _drop_damaged(self, entry: Entry) -> None:
        """What is in the slot is not what was stored: forget it, and all that goes on from it."""
        stored, now = self._stored[entry.slot], self._store.header(entry.slot)
        is_as_read = now is not None and (now.name, now.data_digest) == (stored.name, stored.data_digest)
        if not self._store.is_writer and not is_as_read:
            logger.debug("A stored prefix was replaced by the process that writes %s", self._store.path)
        else:
            self._stats.num_damaged_blocks += 1
            logger.warning(
                "%s: a stored block is damaged: it is dropped, with all that goes on from it, and computed again",
                self._store.path,
            )
        freed = self._drop(entry)
        if self._writer is not None:
            self._writer.put_void(freed)

    def _drop(self, entry: Entry) -> list[int]:
        """Forget a block, and all that go on from it. Returns their slots."""
        freed = self._index.drop(entry)
        for slot in freed:
            del self._stored[slot]
        return freed

    def _read_headers(self) -> None:
        """Enter what the store has. A block whose parent is not there is left out: its slot is free."""
        behind: dict[bytes, list[tuple[int, SlotHeader]]] = {}
        for slot, header in self._store.headers():
            behind.setdefault(header.parent, []).append((slot, header))
        roots = [parent for parent, headers in behind.items() if any(each.namespace == parent for _, each in headers)]
        entries: list[Entry] = []  # parents before their children
        used_at: dict[Entry, int] = {}
        next_ones: list[tuple[bytes, Entry | None]] = [(root, None) for root in roots]
        while next_ones:
            name, parent = next_ones.pop()
            for slot, header in behind.get(name, ()):
                entry = self._index.attach(parent, name, header.key, slot)
                if entry is None:  # another slot has the same block
                    continue
                entries.append(entry)
                used_at[entry] = header.stamp
                self._stored[slot] = _Stored(entry, header.name, header.data_digest)
                next_ones.append((header.name, entry))
        entries.reverse()
        for entry in entries:
            if entry.parent in used_at:
                used_at[entry.parent] = max(used_at[entry.parent], used_at[entry])
        entries.sort(key=used_at.__getitem__)  # keeps children before their parents where they were used at once
        self._index.set_order(entries)
