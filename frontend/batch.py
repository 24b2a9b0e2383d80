"""A batch: many runs of one program, a bounded number at a time, each with a result of its own.

One event loop runs it, whatever the body is. `run_batch` gives it a loop in a thread of its own, so that it works
inside a notebook's loop too; `arun_batch` uses the loop it is called in.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .batch_options import BatchOptions
from .batch_results import BatchError, BatchResults, BatchSummary, ItemTotals
from .calls import Failure
from .errors import ProgramCancelledError
from .journal.identity import ItemKey
from .journal.journal import BatchJournal, JournalSpec, open_journal
from .journal.plain_data import NotPlainDataError
from .loop_thread import HEARTBEAT_S, LoopThread
from .progress import Progress
from .scope import Scope
from .state import ProgramState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One run that has not begun.

    Attributes:
        new_scope: what it will fill.
        execute: runs the body and waits for its calls; hands back what the body raised.
        key: of the item in a journal, if there is one.
    """

    new_scope: Callable[[], Scope]
    execute: Callable[[Scope], Coroutine[Any, Any, BaseException | None]]
    key: ItemKey | None = None


class _BatchEndError(Exception):
    """The batch ends before all items have run: with `outcome`, or because too many have failed."""

    def __init__(self, outcome: BaseException | None = None) -> None:
        super().__init__()
        self.outcome = outcome


class BatchRun:
    """One batch on its way. `run` is called once, in an event loop; the rest may be called from other threads."""

    def __init__(
        self, name: str, items: Sequence[BatchItem], options: BatchOptions, journal: JournalSpec | None = None
    ) -> None:
        self._name = name
        self._items = items
        self._options = options
        self._journal = journal
        self._scopes: list[Scope | None] = [None] * len(items)
        self._resumed: set[int] = set()
        self._failed: list[int] = []
        self._num_unkept = 0
        self._progress = Progress(name, len(items)) if options.has_progress else None
        self._changed = threading.Condition()
        self._ended: set[int] = set()
        self._is_over = False

    @property
    def num_items(self) -> int:
        return len(self._items)

    async def run(self) -> BatchResults:
        """Run every item to its end.

        Raises:
            BatchError: it was to end at so many failed items.
            InvalidProgramError: the journal cannot be used; nothing has run then.
            OSError: the journal cannot be written.
            BaseException: what is no Exception and a body raised, such as KeyboardInterrupt.
            CancelledError: the task was cancelled.
        """
        journal: BatchJournal | None = None
        heartbeat = asyncio.create_task(_wake_now_and_then())
        try:
            if self._journal is not None:
                keys = [item.key for item in self._items if item.key is not None]
                journal = await open_journal(self._journal, keys)
                self._restore(journal)
            await self._run_missing(journal)
        finally:
            heartbeat.cancel()
            if journal is not None:
                journal.close()
            if self._progress is not None:
                self._progress.close()
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
        return self.results()

    def results(self) -> BatchResults:
        """A state for every item. Those of items that did not run say so."""
        reason = "the item was not run: the batch ended before"
        scopes: list[Scope] = []
        for item, scope in zip(self._items, self._scopes, strict=True):
            if scope is None:
                scope = item.new_scope()
                scope.run.end_without_body(Failure(reason, None, ProgramCancelledError))
            scopes.append(scope)
        summary = BatchSummary.of([ItemTotals.of(scope) for scope in scopes], len(self._resumed), self._num_unkept)
        return BatchResults(map(ProgramState, scopes), summary)

    def state_of(self, idx: int) -> ProgramState | None:
        """The state of an item once it has ended; None if the batch is over without it. Blocks."""
        with self._changed:
            self._changed.wait_for(lambda: idx in self._ended or self._is_over)
            scope = self._scopes[idx]
            return None if idx not in self._ended or scope is None else ProgramState(scope)

    def _restore(self, journal: BatchJournal) -> None:
        """Take over from the journal what an earlier batch has finished."""
        for idx, item in enumerate(self._items):
            assert item.key is not None, "items of a batch with a journal have keys"
            scope = journal.restore(item.key, item.new_scope, with_failed=not self._options.retry_failed)
            if scope is not None:
                self._scopes[idx] = scope
                self._resumed.add(idx)
                self._end_item(idx, scope, is_resumed=True)

    async def _run_missing(self, journal: BatchJournal | None) -> None:
        left = iter([idx for idx in range(len(self._items)) if idx not in self._resumed])
        num_workers = min(self._options.max_concurrency, len(self._items) - len(self._resumed))
        try:
            async with asyncio.TaskGroup() as workers:
                self._check_failures()
                for _ in range(num_workers):
                    workers.create_task(self._work(left, journal))
        except ExceptionGroup as group:
            error = group.exceptions[0]
            if not isinstance(error, _BatchEndError):
                raise error from error.__cause__
            outcome = error.outcome or self._batch_error()
            raise outcome from outcome.__cause__

    async def _work(self, left: Iterator[int], journal: BatchJournal | None) -> None:
        for idx in left:
            await self._run_item(idx, journal)

    async def _run_item(self, idx: int, journal: BatchJournal | None) -> None:
        item = self._items[idx]
        scope = self._scopes[idx] = item.new_scope()
        worker = asyncio.current_task()
        assert worker is not None
        error: BaseException | None = None
        try:
            error = await asyncio.create_task(item.execute(scope))  # a task has a context of its own
        except asyncio.CancelledError:
            if not scope.run.is_body_over:  # its task was cancelled before it began
                reason = f"the program {scope.run.program_name!r} was cancelled with its task"
                scope.run.end_without_body(Failure(reason, None, ProgramCancelledError))
        if worker.cancelling():  # otherwise it is the item that was cancelled, by itself: the scope has it
            raise asyncio.CancelledError
        if error is not None and not isinstance(error, Exception | asyncio.CancelledError):
            raise _BatchEndError(error)
        if journal is not None:
            assert item.key is not None
            try:
                await journal.append(item.key, scope)
            except NotPlainDataError as not_plain:
                self._note_unkept(idx, not_plain)
        self._end_item(idx, scope, is_resumed=False)
        self._check_failures()

    def _note_unkept(self, idx: int, error: NotPlainDataError) -> None:
        """The item has its result; a resumed batch runs it again. Told once: others are likely to be the same."""
        self._num_unkept += 1
        if self._num_unkept == 1:
            logger.warning(
                "Item %d of the batch of %r cannot be written to the journal; a resumed batch will run it again: %s. "
                "Let the program return plain data. Other such items are counted in summary.num_unkept.",
                *(idx, self._name, error),
            )

    def _end_item(self, idx: int, scope: Scope, *, is_resumed: bool) -> None:
        totals = ItemTotals.of(scope)
        if totals.is_failed:
            self._failed.append(idx)
        if self._progress is not None:
            self._progress.add(totals, is_resumed=is_resumed)
        with self._changed:
            self._ended.add(idx)
            self._changed.notify_all()

    def _check_failures(self) -> None:
        most = self._options.most_failures
        if most is not None and len(self._failed) > most:
            raise _BatchEndError

    def _batch_error(self) -> BatchError:
        first = self._failed[0]
        what = f"item {first} failed"
        if self._options.on_error == "return":
            most = self._options.max_failures
            what = f"{len(self._failed)} items failed, more than max_failures={most}, of which item {first} was first"
        scope = self._scopes[first]
        cause = None if scope is None else ProgramState(scope).error()
        return self._with_results(f"{what}: {cause}", first, cause)

    def _with_results(self, reason: str, idx: int, cause: BaseException | None = None) -> BatchError:
        error = BatchError(f"the batch of {self._name!r} was ended: {reason}", self.results(), idx)
        error.__cause__ = cause
        return error


async def _wake_now_and_then() -> None:
    """An interrupt that comes just as the loop goes to sleep is noticed when it wakes."""
    while True:
        await asyncio.sleep(HEARTBEAT_S)


def run_batch(batch: BatchRun, name: str) -> BatchResults:
    """Run a batch and wait for it. If the wait is interrupted, everything that runs is cancelled."""
    if not batch.num_items:
        return batch.results()
    return LoopThread(batch.run, f"ramet-batch-{name}").result()
