"""A file that is replaced whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import IO


@contextmanager
def whole_file(path: str | PathLike[str], *, encoding: str = "utf-8", errors: str | None = None) -> Iterator[IO[str]]:
    """Open a file for text. It is written beside the one it replaces, and takes its place at the end of the block; if
    the block raises, what was there stays. Lines end as they are written.

    A device or a pipe is written to directly, a link stays a link.

    Raises:
        OSError: it cannot be written.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        with target.open("w", encoding=encoding, errors=errors, newline="\n") as stream:
            yield stream
        return
    beside = target.with_name(f".{target.name[:200]}.{os.getpid()}.tmp")
    try:
        with beside.open("w", encoding=encoding, errors=errors, newline="\n") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            shutil.copymode(target, beside)
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
