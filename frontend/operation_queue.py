"""OperationQueue: the operations of one state that have not run, which one is under way, and which thread runs them.

A thread that runs operations takes one after the other until none is left, or one has to wait for its outcome. Whoever
brings that claims it, and goes on in its place.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Literal

from .calls import Call
from .operations import Operation

Phase = Literal["idle", "executing", "settled", "waiting"]


class OperationQueue:
    """Takes the interpreter's lock for each step; the interpreter holds it where several belong together.

    Phases: `idle` (nothing to do), `executing` (some thread runs operations), `settled` (what that thread has just
    begun is already over), `waiting` (for the outcome of an operation or, in a new branch, for the fork).
    """

    def __init__(self, lock: threading.Condition, *, is_branch: bool) -> None:
        self._lock = lock
        self._waiting: deque[Operation] = deque()
        self._phase: Phase = "waiting" if is_branch else "idle"
        self._current: Operation | None = None
        self._executor: int | None = None
        self._claimer: int | None = None

    @property
    def is_idle(self) -> bool:
        with self._lock:
            return self._phase == "idle" and not self._waiting

    @property
    def is_new_branch(self) -> bool:
        """Whether it still waits for the fork."""
        return self._phase == "waiting" and self._current is None

    @property
    def is_mine(self) -> bool:
        """Whether it is this thread that runs the operations."""
        return self._executor == threading.get_ident()

    @property
    def is_claimed_elsewhere(self) -> bool:
        """Whether another thread is taking the outcome of the operation under way."""
        return self._claimer not in (None, threading.get_ident())

    @property
    def num_calls(self) -> int:
        """How many calls have not begun."""
        return sum(isinstance(operation, Call) for operation in self._waiting)

    def extend(self, operations: Iterable[Operation]) -> bool:
        """Returns whether nobody runs operations: then this thread is to."""
        self._waiting.extend(operations)
        return self._phase == "idle"

    def execute_here(self) -> None:
        """This thread runs the operations from now on."""
        self._phase, self._executor = "executing", threading.get_ident()

    def next(self) -> Operation | None:
        """The operation to run now, under way from now on; None if there is none."""
        self._current = None
        if self._waiting:
            self._current = self._waiting[0]
            del self._waiting[0]  # not popped: an interrupt between taking it and noting it would lose it
        return self._current

    def end(self) -> None:
        """There is nothing to do."""
        self._phase, self._executor = "idle", None

    def has_to_wait(self) -> bool:
        """Whether the outcome of the operation under way is not there yet: then whoever brings it goes on."""
        with self._lock:
            if self._phase == "settled":
                self._phase = "executing"
                return False
            self._phase, self._executor = "waiting", None
            return True

    def claim(self, operation: Operation) -> bool:
        """Whether this thread is to take the outcome of an operation, and then to call `resume`. It is not if the
        operation was given up."""
        with self._lock:
            if self._current is not operation or self._claimer is not None:
                return False
            self._claimer = threading.get_ident()
            return True

    def resume(self) -> bool:
        """The operation under way is over. Returns whether this thread is to run those after it."""
        with self._lock:
            self._claimer = None
            if self._phase == "executing":
                self._phase = "settled"
                return False
            assert self._phase == "waiting"
            self.execute_here()
            return True

    def give_up(self) -> Operation | None:
        """The operation under way is over, whatever its outcome would be: this thread goes on with those after it."""
        operation, self._current = self._current, None
        self._phase, self._claimer = "executing", None
        return operation
