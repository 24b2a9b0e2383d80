"""BatchStates: the states of a batch one after the other, while the rest still runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from .batch import BatchRun
from .batch_results import BatchResults
from .loop_thread import LoopThread
from .state import ProgramState


class BatchStates(Iterator[ProgramState]):
    """Runs a batch from the first state that is asked for, and gives each in order, once it and those before it have
    ended.

    What ends the batch is raised instead of the first state that is missing. Closing it, or leaving the iteration,
    cancels the rest and waits for its end. What is collected as garbage in another thread than the one that reads waits
    for nothing: it might be for what that very thread has to do.
    """

    def __init__(self, batch: BatchRun, name: str) -> None:
        self._thread: LoopThread[BatchResults] | None = None
        self._reader_id = threading.get_ident()
        self._is_closed = False
        self._batch = batch
        self._name = name
        self._next_idx = 0

    def __next__(self) -> ProgramState:
        """Blocks until the state is there.

        Raises:
            Exception: what ended the batch.
        """
        self._reader_id = threading.get_ident()
        try:
            state = self._next_state()
        except BaseException:
            self.close()
            raise
        if state is None:
            self._is_closed = True
            raise StopIteration
        return state

    def _next_state(self) -> ProgramState | None:
        if self._is_closed:
            return None
        if self._thread is None:
            self._thread = LoopThread(self._batch.run, f"ramet-batch-{self._name}")
        idx = self._next_idx
        self._next_idx += 1
        state = self._batch.state_of(idx) if idx < self._batch.num_items else None
        if state is None:
            self._thread.result()
            assert idx == self._batch.num_items, "a batch that ended well has a state for every item"
        return state

    def close(self) -> None:
        """Cancel what still runs, and wait for its end. Idempotent."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.cancel()

    def __del__(self) -> None:
        if self._thread is not None:
            self._thread.cancel(has_to_wait=threading.get_ident() == self._reader_id)
