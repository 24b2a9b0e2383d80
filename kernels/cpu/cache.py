"""Directories that compiled code may be kept in, and one builder at a time in each.

A library is code that runs in the user's process, so it is taken only from a directory that belongs to the user and
that nobody else can write to.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import CacheUnusableError

logger = logging.getLogger(__name__)

FOLDER = "kernels"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def library_cache(cache_dir: Path) -> Path:
    """The directory of compiled libraries below `cache_dir`, made if need be; if it cannot be used, one below the
    system's temporary directory, with a warning.

    Raises:
        CacheUnusableError: neither can be used.
    """
    try:
        return private_directory(cache_dir / FOLDER)
    except CacheUnusableError as reason:
        try:
            substitute = _substitute_dir()
            private_directory(substitute)
            directory = private_directory(substitute / FOLDER)
        except (CacheUnusableError, OSError) as second:
            raise CacheUnusableError(
                f"compiled CPU kernels cannot be kept anywhere: {reason}; {second}. Set RAMET_CACHE_DIR to a "
                "directory of yours"
            ) from second
        logger.warning("%s; compiled CPU kernels go to %s. Set RAMET_CACHE_DIR to choose", reason, directory)
        return directory


def readable_caches(cache_dir: Path) -> list[Path]:
    """The directories that `library_cache` may have used before and that can still be trusted, written to or not: a
    library that was compiled into an image is used where the file system is read-only."""
    directories = [cache_dir / FOLDER]
    with suppress(OSError):  # a system without any temporary directory
        if _is_own_directory(_substitute_dir()):
            directories.append(_substitute_dir() / FOLDER)
    return [directory for directory in directories if _is_own_directory(directory)]


def _substitute_dir() -> Path:
    return Path(tempfile.gettempdir()) / f"ramet-{_user_id()}"


def _is_own_directory(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == _user_id() and not status.st_mode & _OTHERS_WRITE


def private_directory(path: Path) -> Path:
    """Make `path` (with its parents), or check it: a real directory of this user that only this user can write to.

    Raises:
        CacheUnusableError: it cannot be made, belongs to somebody else, or files in it cannot be written or executed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise CacheUnusableError(f"{path} is not a directory")
        if status.st_uid != _user_id():
            raise CacheUnusableError(f"{path} belongs to another user")
        if status.st_mode & _OTHERS_WRITE:
            path.chmod(0o700)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise CacheUnusableError(f"{path} cannot be written to ({error.strerror or error})") from error
    if sys.platform == "linux" and os.statvfs(path).f_flag & os.ST_NOEXEC:
        raise CacheUnusableError(f"{path} is on a file system that does not execute programs")
    return path


def is_own_file(path: Path) -> bool:
    """Whether it is a plain file that this user owns and nobody else can write to."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == _user_id() and not status.st_mode & _OTHERS_WRITE


@contextmanager
def one_builder(directory: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the directory's lock, after calling `on_wait` if another process has it. The system frees the lock of a
    process that dies. Where locks do not work, two may build at once: the last to finish is kept, both are right."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            logger.debug("no lock in %s: %s", directory, error)
        yield
    finally:
        os.close(descriptor)


def forget_oldest(directory: Path, num_kept: int) -> None:
    """Delete all but the entries (folders) of `directory` that were made last. Loaded libraries stay loaded."""
    entries = []
    for entry in directory.iterdir():
        with suppress(OSError):
            if entry.is_dir():
                entries.append((entry.stat().st_mtime, entry))
    for _, entry in sorted(entries, reverse=True)[num_kept:]:
        shutil.rmtree(entry, ignore_errors=True)


def _user_id() -> int:
    return 0 if sys.platform == "win32" else os.geteuid()
