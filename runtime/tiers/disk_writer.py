"""DiskWriter: the thread that writes a store, so that no step waits for a disk."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from . import disk_format
from .disk_format import SlotHeader
from .disk_store import DiskStore
from .host_copy import HostCopy

logger = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 256 << 20
"""What is offered beyond this is refused: the disk is behind, and memory is worth more."""
_CLOSE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SlotWrite:
    """A slot that is to be written; `row` of the data that comes with it."""

    slot: int
    uid: int
    parent_uid: int
    namespace: bytes
    key: bytes
    row: int


@dataclass(frozen=True, slots=True)
class _Blocks:
    writes: Sequence[SlotWrite]
    data: HostCopy


@dataclass(frozen=True, slots=True)
class _Void:
    slots: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Stamp:
    slots: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Clear:
    """All slots are given up."""


_Job = _Blocks | _Void | _Stamp | _Clear


class DiskWriter:
    """Carries out jobs in their order. After an error it stores nothing any more, having said so once.

    Attributes:
        written: (slot, uid, digest of the data) of blocks that are on disk; the owner takes them from the left.
        has_failed: it has given up.
    """

    def __init__(self, store: DiskStore) -> None:
        self.written: deque[tuple[int, int, bytes]] = deque()
        self.has_failed = False
        self._store = store
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()  # None: there will be no more
        self._num_queued_bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ramet-prefix-store", daemon=True)
        self._thread.start()

    @property
    def room_bytes(self) -> int:
        """How much more it takes now."""
        return max(0, MAX_QUEUED_BYTES - self._num_queued_bytes)

    def put_blocks(self, writes: Sequence[SlotWrite], data: HostCopy) -> None:
        with self._lock:
            self._num_queued_bytes += data.num_bytes
        self._jobs.put(_Blocks(writes, data))

    def put_void(self, slots: Sequence[int]) -> None:
        """Slots whose data was found to be damaged: no later process should try them."""
        self._jobs.put(_Void(slots))

    def put_stamp(self, slots: Sequence[int]) -> None:
        """Slots that were used."""
        self._jobs.put(_Stamp(slots))

    def put_clear(self) -> None:
        """Whatever is stored is to be forgotten, even after an error: where nothing can be written, this may work."""
        self._jobs.put(_Clear())

    def close(self) -> None:
        """Wait for what is queued, though not for ever. Idempotent."""
        self._jobs.put(None)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.warning("%s: the disk is too slow; some prefixes are not stored", self._store.path)
            self.has_failed = True  # it ends after the block that it is writing
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not self.has_failed or isinstance(job, _Clear):
                try:
                    self._carry_out(job)
                except Exception as error:  # of the disk, or of the device that blocks come from
                    self.has_failed = True
                    logger.warning("%s: no more prefixes are stored: %s", self._store.path, error)
            if isinstance(job, _Blocks):
                with self._lock:
                    self._num_queued_bytes -= job.data.num_bytes

    def _carry_out(self, job: _Job) -> None:
        match job:
            case _Blocks(writes, data):
                self._write(writes, data)
            case _Void(slots):
                for slot in slots:
                    self._store.erase(slot)
            case _Stamp(slots):
                now = int(time.time())
                for slot in slots:
                    self._store.stamp(slot, now)
            case _Clear():
                self._store.erase_all()

    def _write(self, writes: Sequence[SlotWrite], data: HostCopy) -> None:
        rows = data.rows()
        for write in writes:
            if self.has_failed:
                return
            row = memoryview(rows[write.row])
            found = disk_format.digest(row)
            header = SlotHeader(write.uid, write.parent_uid, write.namespace, found, write.key, int(time.time()))
            self._store.write(write.slot, header, row)
            self.written.append((write.slot, write.uid, found))
