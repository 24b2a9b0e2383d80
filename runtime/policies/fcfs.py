"""First come, first served."""

from __future__ import annotations

from ..sequence import Sequence
from .base import WaitingView, latest_arrival


class FirstComeFirstServed:
    """Order of arrival; blind to the cache. Nobody is ever overtaken, except while it waits for its own prefix."""

    name = "fcfs"
    is_returning_first = True

    def ranks(self, waiting: WaitingView) -> range:
        return range(len(waiting.sequences))

    def victim(self, running: list[Sequence]) -> Sequence:
        return latest_arrival(running)
