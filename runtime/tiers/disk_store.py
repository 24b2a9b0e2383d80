"""DiskStore: the files of one store, opened. It deals in slots; which prefix lies in which is the tier's business."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import disk_files, disk_format
from .disk_format import SlotHeader

logger = logging.getLogger(__name__)

_HEADERS_AT_ONCE = 4096


class DiskStore:
    """One process writes a store at a time; others read what it had when they opened it, if it had begun by then.

    Nothing is read through a mapping: a page that is cut off, or that the medium does not give, would end the process.

    Args:
        folder: of `disk_files.open_directory`.
        identity: all that the bits of the blocks depend on; a store of another identity is another store.
        max_bytes: of all stores in the folder together.

    Raises:
        OSError: the files cannot be opened.

    Attributes:
        is_writer: whether this process may write.
        num_slots: 0 where nothing can be kept.
    """

    def __init__(self, folder: Path, identity: bytes, block_size: int, bytes_per_block: int, max_bytes: int) -> None:
        self.bytes_per_block = bytes_per_block
        self._block_size = block_size
        self._header_bytes = disk_format.header_bytes(block_size)
        self._stride = disk_format.padded(bytes_per_block)
        self._first_pages = disk_format.pack_first_pages(identity)
        self._files: dict[int, Path] = {}  # by descriptor; the lock is the last to be let go
        name = disk_format.store_name(identity)
        self.path = folder / f"{name}.blocks"
        try:
            lock_path = folder / f"{name}.lock"
            lock, is_taken = _lock_or_none(lock_path)
            self.is_writer = lock is not None
            if lock is not None:
                self._files[lock] = lock_path
                max_bytes = disk_files.make_room(folder, name, max_bytes)
            try:
                self._index = self._open(folder / f"{name}.index")
                self._blocks = self._open(self.path)
            except FileNotFoundError:
                if not is_taken:
                    raise
                logger.warning("%s: another process begins to store prefixes there; this one keeps none", folder)
                self.num_slots = 0
            else:
                self.num_slots = self._prepare(max_bytes)
        except BaseException:
            self.close()
            raise

    def headers(self) -> Iterator[tuple[int, SlotHeader]]:
        """Every slot whose header is whole, with it. Raises OSError."""
        size = self._header_bytes
        for first in range(0, self.num_slots, _HEADERS_AT_ONCE):
            num_bytes = min(_HEADERS_AT_ONCE, self.num_slots - first) * size
            data = os.pread(self._index, num_bytes, self._header_at(first))
            for idx in range(len(data) // size):
                header = SlotHeader.unpack(data[idx * size : (idx + 1) * size])
                if header is not None:
                    yield first + idx, header

    def header(self, slot: int) -> SlotHeader | None:
        """A slot's header as it is on disk now; None if it is void or damaged."""
        with suppress(OSError):
            data = os.pread(self._index, self._header_bytes, self._header_at(slot))
            return SlotHeader.unpack(data) if len(data) == self._header_bytes else None
        return None

    def read(self, slot: int, into: NDArray[np.uint8]) -> bool:
        """Copy a slot's data. False if it cannot be read."""
        with suppress(OSError):
            return os.preadv(self._blocks, [into.data], slot * self._stride) == self.bytes_per_block
        return False

    def prefetch(self, slots: list[int]) -> None:
        """Let the system begin to read these slots."""
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                for slot in slots:
                    os.posix_fadvise(self._blocks, slot * self._stride, self._stride, os.POSIX_FADV_WILLNEED)

    def write(self, slot: int, header: SlotHeader, data: memoryview) -> None:
        """Replace a slot, in the order that disk_format.py tells. Raises OSError."""
        self.erase(slot)
        disk_files.write_at(self._blocks, data, slot * self._stride)
        disk_files.write_at(self._index, header.pack(), self._header_at(slot))

    def erase(self, slot: int) -> None:
        """Make a slot void. Raises OSError."""
        disk_files.write_at(self._index, disk_format.void_header(self._block_size), self._header_at(slot))

    def stamp(self, slot: int, seconds: int) -> None:
        """Note when a slot was used last. Raises OSError."""
        disk_files.write_at(self._index, disk_format.pack_stamp(seconds), self._header_at(slot))

    def erase_all(self) -> None:
        """Make every slot void, and give up the data: who has read the headers before finds none.

        Raises:
            OSError: it cannot be done, or another process may store prefixes in the place of this one.
        """
        os.ftruncate(self._index, len(self._first_pages))
        os.ftruncate(self._blocks, 0)
        os.ftruncate(self._index, len(self._first_pages) + self.num_slots * self._header_bytes)
        os.ftruncate(self._blocks, self.num_slots * self._stride)
        for descriptor, path in self._files.items():
            if disk_files.has_other_file(path, descriptor):
                raise OSError(f"{path.name} was deleted, and another process has made it anew")

    def close(self) -> None:
        """Idempotent."""
        for descriptor in reversed(self._files):
            os.close(descriptor)
        self._files.clear()

    def _open(self, path: Path) -> int:
        descriptor = disk_files.open_file(path, can_write=self.is_writer)
        self._files[descriptor] = path
        return descriptor

    def _prepare(self, max_bytes: int) -> int:
        """Check the first pages, write them if this is a new store, and bring the files to their size."""
        first = os.pread(self._index, len(self._first_pages), 0)
        is_sound = first == self._first_pages
        if not self.is_writer:
            return os.fstat(self._blocks).st_size // self._stride if is_sound else 0
        num_slots = max_bytes // (self._stride + self._header_bytes)
        if num_slots == 0:
            logger.warning("%s: nothing can be stored, for stores that are in use leave no room", self.path)
        if not is_sound:
            if os.fstat(self._index).st_size:
                logger.warning("%s is damaged, or of another version: the prefixes stored there are dropped", self.path)
            os.ftruncate(self._index, 0)
            os.ftruncate(self._blocks, 0)
            disk_files.write_at(self._index, self._first_pages, 0)
        os.ftruncate(self._index, len(self._first_pages) + num_slots * self._header_bytes)
        os.ftruncate(self._blocks, num_slots * self._stride)
        return num_slots

    def _header_at(self, slot: int) -> int:
        return len(self._first_pages) + slot * self._header_bytes


def _lock_or_none(path: Path) -> tuple[int | None, bool]:
    """The lock, None if there is none to be had; and whether that is because another process has it."""
    try:
        lock = disk_files.try_lock(path)
    except OSError as error:
        logger.warning("%s: nothing can be stored there (%s); what is there is read", path.parent, error)
        return None, False
    if lock is None:
        logger.warning("%s: another process stores prefixes of this model there; this one only reads them", path.parent)
    return lock, lock is None
