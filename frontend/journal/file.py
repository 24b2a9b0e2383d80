"""JournalFile: lines that are only ever appended, by one process at a time, each on the disk when its future is done.

Lines are written by a thread that takes all that are waiting and makes them durable at once: what a slow disk costs is
shared. A process that is killed leaves at most a torn last line, which the next one cuts off.
"""

from __future__ import annotations

import json
import os
import queue
import stat
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from ..errors import InvalidProgramError
from .identity import HEADER_START, JournalIdentity


class JournalFile:
    """An open journal, locked until `close`. Blocks while it is opened and read; afterwards only `close` does."""

    def __init__(self, path: str, identity: JournalIdentity) -> None:
        """
        Raises:
            InvalidProgramError: it is no file, no journal, one of something else, or in use.
            OSError: it cannot be opened or written.
        """
        self.path = path
        self._identity = identity
        _check_is_file(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._queue: queue.SimpleQueue[tuple[bytes, Future[None]] | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        try:
            _lock(self._descriptor, path)
            self._records_start = self._open_records()
        except BaseException:
            os.close(self._descriptor)
            raise
        self._writer = threading.Thread(target=self._write, name="ramet-journal", daemon=True)
        self._writer.start()

    def records(self) -> Iterator[Mapping[str, Any]]:
        """The records there are, oldest first. Cuts off a torn line at the end. Only before anything is appended.

        Raises:
            InvalidProgramError: a line before the last is damaged.
        """
        end = self._records_start
        with open(os.dup(self._descriptor), "rb") as file:
            file.seek(end)
            damaged = False
            for number, line in enumerate(file, 2):
                if damaged:
                    raise InvalidProgramError(
                        f"line {number - 1} of the journal {self.path!r} is damaged, and it is not the last one: "
                        "repair or delete the line, or give another file"
                    )
                record = _parsed(line)
                if record is None:
                    damaged = True
                    continue
                end += len(line)
                yield record
        if damaged:
            os.ftruncate(self._descriptor, end)

    def append(self, line: str) -> Future[None]:
        """Write one line. The future is done when it is on the disk, or has the OSError that kept it from there."""
        future: Future[None] = Future()
        self._queue.put((f"{line}\n".encode("ascii"), future))
        return future

    def close(self) -> None:
        """Write what is waiting and unlock the file."""
        self._queue.put(None)
        self._writer.join()
        os.close(self._descriptor)

    def _open_records(self) -> int:
        """Check the header, or write it; where the records begin."""
        with open(os.dup(self._descriptor), "rb") as file:
            file.seek(0)
            line = file.readline()
        own = f"{json.dumps(self._identity.to_header(), separators=(',', ':'))}\n".encode("ascii")
        is_torn = line.startswith(HEADER_START) and own.startswith(line) and line != own
        if not line or is_torn:  # killed in the middle of its first line; anything shorter may be somebody's notes
            os.ftruncate(self._descriptor, 0)
            _write_all(self._descriptor, own)
            os.fsync(self._descriptor)
            _sync_directory(self.path)
            return len(own)
        header = _parsed(line) if line.startswith(HEADER_START) else None
        if header is None:
            raise InvalidProgramError(
                f"{self.path!r} is no journal of a batch: give a file that does not exist yet, or the journal of this "
                "batch's earlier run"
            )
        self._identity.check_header(header, self.path)
        return len(line)

    def _write(self) -> None:
        is_open = True
        while is_open:
            waiting = [self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get())
            entries = [entry for entry in waiting if entry is not None]
            is_open = len(entries) == len(waiting)
            if not entries:
                continue
            if self._error is None:
                self._error = self._write_durably([line for line, _ in entries])
            for _, future in entries:
                if self._error is None:
                    future.set_result(None)
                else:
                    future.set_exception(self._error)

    def _write_durably(self, lines: Sequence[bytes]) -> Exception | None:
        """Returns what kept them from the disk: whoever waits for them is told, whatever it is."""
        try:
            size = os.fstat(self._descriptor).st_size
            try:
                _write_all(self._descriptor, b"".join(lines))
                os.fsync(self._descriptor)
            except OSError:
                with suppress(OSError):  # else a torn line stays, which the next batch cuts off
                    os.ftruncate(self._descriptor, size)
                raise
        except Exception as error:
            return error
        return None


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    """The JSON object of a line; None if it is torn or damaged."""
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _check_is_file(path: str) -> None:
    """A device or a pipe is not opened at all: that alone may change something."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise InvalidProgramError(
            f"journal={path!r} is not allowed: it is no regular file. Give the path of a file, such as 'run.jsonl'"
        )


def _lock(descriptor: int, path: str) -> None:
    """Held until the descriptor is closed; the system frees the lock of a process that dies. Not on Windows."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidProgramError(
            f"the journal {path!r} is in use by a batch that is running: wait for it, or give another file"
        ) from None


def _sync_directory(path: str) -> None:
    """Make the file's name durable too."""
    if sys.platform == "win32":
        return
    descriptor = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
