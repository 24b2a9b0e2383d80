"""BatchJournal: what a batch does with its journal: take over the items that are there, add those that end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ..backend import Backend
from ..body_threads import body_threads
from ..errors import InvalidProgramError, described
from ..loop_signals import settled
from ..scope import Scope
from ..trace.capture import TokenReader
from ..trace.json_codec import JsonShapeError
from .file import JournalFile
from .identity import ItemKey, JournalIdentity
from .plain_data import NotPlainDataError
from .record import record_line
from .restore import restored_scope
from .shapes import record_head


@dataclass(frozen=True, slots=True)
class JournalSpec:
    """Which file keeps the items of a batch, and what it has to be of."""

    path: str
    identity: JournalIdentity
    backend: Backend


class BatchJournal:
    """An open journal. A finished item that was appended is on the disk."""

    def __init__(self, spec: JournalSpec, keys: Iterable[ItemKey]) -> None:
        """Reads the records of these items; blocks.

        Raises:
            InvalidProgramError: the file is no journal, one of something else, damaged, or in use.
            OSError: it cannot be opened or written.
        """
        self._path = spec.path
        self._reader = TokenReader(spec.backend)
        self._records: dict[ItemKey, Mapping[str, Any]] = {}
        self._file = JournalFile(spec.path, spec.identity)
        wanted = set(keys)
        try:
            for record in self._file.records():
                key = self._key_of(record)
                if key in wanted:
                    self._records[key] = record  # the last one holds: an item that failed may have run again
        except BaseException:
            self._file.close()
            raise

    def _key_of(self, record: Mapping[str, Any]) -> ItemKey:
        try:
            head = record_head(record)
        except JsonShapeError as error:
            raise self._damaged(error) from None
        return ItemKey(head.key, head.occurrence, head.item)

    def restore(self, key: ItemKey, new_scope: Callable[[], Scope], *, with_failed: bool) -> Scope | None:
        """The finished run of an item, if the journal has it; of a failed one only if it is wanted.

        Raises:
            InvalidProgramError: its record is damaged.
        """
        record = self._records.pop(key, None)
        try:
            if record is None or (record["failed"] and not with_failed):
                return None
            return restored_scope(record, new_scope)
        except Exception as error:  # whatever a line can be like that this process has not written
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> InvalidProgramError:
        return InvalidProgramError(
            f"a record of the journal {self._path!r} is damaged ({described(error)}): delete its line, or "
            "give another file"
        )

    async def append(self, key: ItemKey, scope: Scope) -> None:
        """Write down a run that has ended; returns once it is on the disk.

        Raises:
            NotPlainDataError: the body returned what JSON has no form for.
            OSError: it cannot be written.
        """
        try:
            line = record_line(key, scope, self._reader)
        except NotPlainDataError:
            raise
        except Exception as error:  # of a program's own objects, which may do anything when they are looked at
            raise NotPlainDataError(f"what it gave cannot be written as JSON ({described(error)})") from error
        written = self._file.append(line)
        await settled(written)
        written.result(timeout=0)

    def close(self) -> None:
        """Unlock the file, once everything appended is written."""
        self._file.close()


async def open_journal(spec: JournalSpec, keys: Iterable[ItemKey]) -> BatchJournal:
    """Open a journal without blocking the event loop. Raises as BatchJournal does."""
    opening = body_threads.submit(lambda: BatchJournal(spec, keys))
    try:
        await settled(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unused)
        raise
    return opening.result(timeout=0)


def _close_unused(opening: Future[BatchJournal]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
