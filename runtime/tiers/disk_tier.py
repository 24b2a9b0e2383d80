"""DiskTier: finished prefixes in a directory, for processes to come.

The index in memory is the truth: it is read from the headers when the store is opened, belongs to the engine's thread,
and compares tokens. A slot that is being written is in it, so that it is not offered again, and becomes loadable when
the writer says that it is there. Data is compared with its digest whenever it is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .base import TierStats
from .disk_format import ROOT_UID, SlotHeader, digest, namespace_digest
from .disk_store import DiskStore
from .disk_writer import DiskWriter, SlotWrite
from .host_copy import HostCopy
from .slot_index import Entry, SlotIndex

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Stored:
    """What is in a slot, or about to be: then data_digest is None."""

    uid: int
    data_digest: bytes | None


class DiskTier:
    """Implements `base.KVTier` over a store, which it owns."""

    name = "disk"
    takes: Literal["finished", "evicted"] = "finished"

    def __init__(self, store: DiskStore, block_size: int) -> None:
        self._store = store
        self._index = SlotIndex(store.num_slots, block_size)
        self._stored: dict[int, _Stored] = {}
        self._next_uid = ROOT_UID + 1
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
        if writer is None or writer.has_failed or namespace_digest(namespace) is None:
            return range(0)
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
            parent_uid = ROOT_UID if parent.parent is None else self._stored[parent.slot].uid
            self._stored[entry.slot] = _Stored(self._next_uid, None)
            writes.append(SlotWrite(entry.slot, self._next_uid, parent_uid, digest_of_namespace, entry.key, row))
            self._next_uid += 1
        if writes:
            self._writer.put_blocks(writes, data)

    def clear(self) -> None:
        self._index.clear()
        self._stored.clear()
        if self._writer is not None:
            self._writer.put_clear()

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
            slot, uid, data_digest = written.popleft()
            stored = self._stored.get(slot)
            if stored is not None and stored.uid == uid:  # or it was given up meanwhile
                stored.data_digest = data_digest
                self._stats.num_stored_blocks += 1
                self._stats.num_stored_bytes += self._store.bytes_per_block

    def _drop_damaged(self, entry: Entry) -> None:
        """What is in the slot is not what was stored: forget it, and all that goes on from it."""
        uid = self._stored[entry.slot].uid
        now = self._store.header(entry.slot)
        if not self._store.is_writer and (now is None or now.uid != uid):
            logger.debug("A stored prefix was replaced by the process that writes %s", self._store.path)
        else:
            self._stats.num_damaged_blocks += 1
            logger.warning(
                "%s: a stored block is damaged: it is dropped, with all that goes on from it, and computed again",
                self._store.path,
            )
        freed = self._index.drop(entry)
        for slot in freed:
            del self._stored[slot]
        if self._writer is not None:
            self._writer.put_void(freed)

    def _read_headers(self) -> None:
        """Enter what the store has. A block whose parent is not there is left out: its slot is free."""
        headers = sorted(self._store.headers(), key=lambda item: item[1].uid)
        entries: dict[int, tuple[Entry, SlotHeader]] = {}
        used_at: dict[int, int] = {}
        for slot, header in headers:
            self._next_uid = max(self._next_uid, header.uid + 1)
            parent: Entry | None = None
            if header.uid in entries:
                continue
            if header.parent_uid != ROOT_UID:
                found = entries.get(header.parent_uid)
                if found is None or found[1].namespace != header.namespace:
                    continue
                parent = found[0]
            entry = self._index.attach(parent, header.namespace, header.key, slot)
            if entry is not None:
                entries[header.uid] = (entry, header)
                used_at[header.uid] = header.stamp
                self._stored[slot] = _Stored(header.uid, header.data_digest)
        order = sorted(entries, reverse=True)  # children before their parents
        for uid in order:
            parent_uid = entries[uid][1].parent_uid
            if parent_uid != ROOT_UID:
                used_at[parent_uid] = max(used_at[parent_uid], used_at[uid])
        order.sort(key=used_at.__getitem__)  # keeps that order where they were used at once
        self._index.set_order(entries[uid][0] for uid in order)
