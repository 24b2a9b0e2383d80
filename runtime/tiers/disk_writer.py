"""DiskWriter: the thread that writes a store, so that no step waits for a disk."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from ..errors import PrefixesKeptError
from . import disk_format
from .disk_format import SlotHeader
from .disk_store import DiskStore
from .host_copy import HostCopy

logger = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 256 << 20
"""What is offered beyond this is refused: the disk is behind, and memory is worth more."""
RETRY_SECONDS = 10.0
"""After an error of the disk: when it is tried again."""
_CLOSE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class SlotWrite:
    """A slot that is to be written.

    Attributes:
        number: of this write; no other one of the process has it.
        row: of the data that comes with it.
    """

    slot: int
    number: int
    parent: bytes
    namespace: bytes
    key: bytes
    row: int


@dataclass(frozen=True, slots=True)
class Written:
    """What came of a SlotWrite: the digest of the data that is in the slot; None if it could not be written."""

    slot: int
    number: int
    data_digest: bytes | None


@dataclass(frozen=True, slots=True)
class _Blocks:
    writes: Sequence[SlotWrite]
    data: HostCopy
    num_clears: int  # before it


@dataclass(frozen=True, slots=True)
class _Void:
    slots: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Stamp:
    slots: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Clear:
    """All slots are given up."""

    done: Future[None] = field(default_factory=Future)


_Job = _Blocks | _Void | _Stamp | _Clear


class DiskWriter:
    """Carries out jobs in their order. After an error of the disk, which is full, say, it takes no blocks for a while,
    and then tries again; after any other error it takes none any more. It says once that it has stopped, and once that
    it goes on.

    Attributes:
        written: what came of the writes; the owner takes them from the left.
    """

    def __init__(self, store: DiskStore) -> None:
        self.written: deque[Written] = deque()
        self._store = store
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()  # None: there will be no more
        self._num_queued_bytes = 0
        self._num_clears = 0
        self._resumes_at = -math.inf
        self._has_failed = False
        self._is_ending = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="ramet-prefix-store", daemon=True)
        self._thread.start()

    @property
    def room_bytes(self) -> int:
        """How much more it takes now."""
        return max(0, MAX_QUEUED_BYTES - self._num_queued_bytes) if self.is_storing else 0

    @property
    def is_storing(self) -> bool:
        """False after an error, until it is time to try again."""
        return time.monotonic() >= self._resumes_at

    def put_blocks(self, writes: Sequence[SlotWrite], data: HostCopy) -> None:
        with self._lock:
            self._num_queued_bytes += data.num_bytes
        self._jobs.put(_Blocks(writes, data, self._num_clears))

    def put_void(self, slots: Sequence[int]) -> None:
        """Slots whose data was found to be damaged: no later process should try them."""
        self._jobs.put(_Void(slots))

    def put_stamp(self, slots: Sequence[int]) -> None:
        """Slots that were used."""
        self._jobs.put(_Stamp(slots))

    def put_clear(self) -> Future[None]:
        """Whatever is stored is to be forgotten, and what waits to be need not be stored any more. It is done even
        after an error: where nothing can be written, this may work.

        Returns:
            Done when nothing is left; or PrefixesKeptError.
        """
        job = _Clear()
        job.done.set_running_or_notify_cancel()  # whoever does not wait for it any more leaves it as it is
        self._num_clears += 1
        self._jobs.put(job)
        return job.done

    def close(self) -> None:
        """Wait for what is queued, though not for ever. Idempotent."""
        self._jobs.put(None)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.warning("%s: the disk is too slow; some prefixes are not stored", self._store.path)
            self._is_ending = True  # it ends after the block that it is writing
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            match job:
                case _Blocks():
                    self._store_blocks(job)
                case _Clear(done):
                    self._clear(done)
                case _Void(slots):
                    with suppress(OSError):  # they will be found to be damaged again
                        for slot in slots:
                            self._store.erase(slot)
                case _Stamp(slots):
                    with suppress(OSError):
                        for slot in slots:
                            self._store.stamp(slot, int(time.time()))

    def _store_blocks(self, job: _Blocks) -> None:
        for write in job.writes:
            found = None
            if self.is_storing and not self._is_ending and job.num_clears == self._num_clears:
                try:
                    found = self._write(write, job.data)
                except OSError as error:
                    self._pause(f"the next try is in {RETRY_SECONDS:g} s", error, RETRY_SECONDS)
                except Exception as error:  # of the device that blocks come from
                    self._pause("nor will there be a next try", error, math.inf)
            self.written.append(Written(write.slot, write.number, found))
        with self._lock:
            self._num_queued_bytes -= job.data.num_bytes

    def _write(self, write: SlotWrite, data: HostCopy) -> bytes:
        row = memoryview(data.rows()[write.row])
        found = disk_format.digest(row)
        header = SlotHeader(write.parent, write.namespace, found, write.key, int(time.time()))
        self._store.write(write.slot, header, row)
        if self._has_failed:
            self._has_failed = False
            logger.warning("%s: prefixes are stored again", self._store.path)
        return found

    def _pause(self, outlook: str, error: Exception, seconds: float) -> None:
        self._resumes_at = time.monotonic() + seconds
        if not self._has_failed:
            self._has_failed = True
            logger.warning("%s: no prefixes are stored, %s: %s", self._store.path, outlook, error)

    def _clear(self, done: Future[None]) -> None:
        try:
            self._store.erase_all()
        except OSError as error:
            kept = PrefixesKeptError(
                f"{self._store.path.parent}: the prefixes stored there are not all erased: {error}; try again, or end "
                "all processes that use it and delete it"
            )
            kept.__cause__ = error
            done.set_exception(kept)
        else:
            done.set_result(None)
