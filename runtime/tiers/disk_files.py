"""The directory of stores: private to its user, one writer for each store, and a bound on all of them together."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

FOLDER = "prefixes"
SUFFIXES = (".index", ".blocks")
_MAX_LOCK_TRIES = 100
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def open_directory(path: Path) -> Path:
    """The folder of stores below `path`; made if need be.

    Raises:
        OSError: it cannot be made or read, or somebody else owns it or may write to it.
    """
    folder = path / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{folder} is not a directory")
    if sys.platform != "win32" and (status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE):
        raise PermissionError(f"{folder} belongs to another user, or others may write to it")
    return folder


def open_file(path: Path, *, can_write: bool) -> int:
    """A descriptor; a file that is made is its user's alone. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT if can_write else os.O_RDONLY
    return os.open(path, flags | _NO_LINKS, 0o600)


def try_lock(path: Path) -> int | None:
    """Become the writer of a store: a descriptor to be closed when done; None if another process is.

    The system frees the lock of a process that dies. Raises OSError where nothing can be locked.
    """
    if sys.platform == "win32":
        raise OSError("no locks")
    import fcntl

    for _ in range(_MAX_LOCK_TRIES):
        descriptor = open_file(path, can_write=True)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if has_other_file(path, descriptor) is False:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # somebody has deleted it since it was opened: the next one to come locks another file
    raise OSError(f"{path} is deleted again and again")


def has_other_file(path: Path, descriptor: int) -> bool | None:
    """Whether the path leads to another file now than the open one; None if to none at all. Raises OSError."""
    try:
        return not os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return None


def write_at(descriptor: int, data: bytes | memoryview, place: int) -> None:
    """Write all of it. Raises OSError."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, place)
        view, place = view[count:], place + count


def make_room(folder: Path, own_name: str, max_bytes: int) -> int:
    """Delete other stores, the longest unused first, until half of `max_bytes` is left for this one; those that a
    process is writing stay, and are counted as they are now. Returns what is left.

    Stores of other models, and of versions of ramet that are no more, would otherwise stay for ever.
    """
    others = sorted(_other_stores(folder, own_name))
    taken = sum(num_bytes for _, num_bytes, _ in others)
    for _, num_bytes, name in others:
        if taken <= max_bytes // 2:
            break
        if _delete(folder, name):
            logger.info("The stored prefixes of another model (%s) are deleted to make room", name)
            taken -= num_bytes
    return max(0, max_bytes - taken)


def _other_stores(folder: Path, own_name: str) -> Iterator[tuple[float, int, str]]:
    for name in {path.stem for path in folder.iterdir() if path.suffix in SUFFIXES} - {own_name}:
        used, num_bytes = 0.0, 0
        for suffix in SUFFIXES:
            with suppress(OSError):
                status = (folder / f"{name}{suffix}").lstat()
                used = max(used, status.st_mtime)
                num_bytes += status.st_blocks * 512
        yield used, num_bytes, name


def _delete(folder: Path, name: str) -> bool:
    """Its lock stays: whoever has opened that already would lock a file that is no more, beside the next writer."""
    with suppress(OSError):
        lock = try_lock(folder / f"{name}.lock")
        if lock is None:
            return False
        try:
            for suffix in SUFFIXES:
                (folder / f"{name}{suffix}").unlink(missing_ok=True)
            return True
        finally:
            os.close(lock)
    return False
