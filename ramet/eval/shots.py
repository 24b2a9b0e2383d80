"""Which worked examples stand before an item.

Shots are drawn by sorting the pool by a hash of the seed, so that the draw depends on nothing else: not on Python's
version, on other items, on their order or on how many are asked. The shots of n are the first of those of n + 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from .errors import InvalidTaskError
from .task import Task
from .template import Record


class ShotSource:
    """The shots of a task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._pool: Sequence[Record] = task.items if task.shots is None else task.shots
        seeded = task.shot_order == "fixed"
        self._order = self._drawn(f"{task.seed}") if seeded else list(range(len(self._pool)))

    def shots_for(self, item: Record) -> list[Record]:
        """The shots of one item, in the order they are shown. An item that is equal to this one is never among them.

        Cost: with "per_item", a sort of the whole pool.

        Raises:
            InvalidTaskError: there are not enough.
        """
        task = self._task
        if task.num_shots == 0:
            return []
        order = self._order
        if task.shot_order == "per_item":
            order = self._drawn(f"{task.seed}:{digest(item)}")
        shots: list[Record] = []
        for idx in order:
            if self._pool[idx] != item:
                shots.append(self._pool[idx])
            if len(shots) == task.num_shots:
                return shots
        raise InvalidTaskError(
            f"num_shots={task.num_shots} is not possible: beside the item itself there are {len(shots)} to take from"
        )

    def _drawn(self, seed: str) -> list[int]:
        return sorted(range(len(self._pool)), key=lambda idx: hashlib.sha256(f"{seed}:{idx}".encode()).digest())


def digest(value: object) -> str:
    """A name for a JSON value that depends on its content alone."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
