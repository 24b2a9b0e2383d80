"""What a schedule policy is: a rank for everybody in the waiting queue, and a choice of victim."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListLike
from dataclasses import dataclass
from operator import sub
from typing import Protocol

from ...radix.watches import PrefixWatch
from ..sequence import Sequence


@dataclass(frozen=True, slots=True)
class WaitingView:
    """The waiting queue as a policy sees it. Lists of equal length, in order of arrival; not to be changed.

    Attributes:
        sequences: who waits.
        watches: how much of each is cached, in whole blocks, at this moment.
        arrivals: the number of each among all who ever came, from 0.
        places: the place of each in the queue, plus the number of those who ever came and wait no more.
        running: who runs, in order of admission.
    """

    sequences: list[Sequence]
    watches: list[PrefixWatch]
    arrivals: list[int]
    places: ListLike[int]
    running: list[Sequence]

    def num_overtaken(self) -> Iterable[int]:
        """How many later arrivals left the queue before each: its age. Never more than that of an earlier arrival.

        Of those before arrival a, which is now at position p, a - p have left; the rest of those who left came later.
        So nothing has to be counted when somebody leaves. Later arrivals that were aborted count too; that ages all
        who came before them alike.
        """
        return map(sub, self.places, self.arrivals)


class SchedulePolicy(Protocol):
    """Order of service. Stateless: a rank is a function of the view, so the order can be repeated.

    Attributes:
        name: its key in SCHEDULE_POLICIES.
        is_returning_first: preempted sequences come before all others, in order of arrival. Otherwise they are ranked
            like the others; their view has no watches and no arrivals.
    """

    name: str
    is_returning_first: bool

    def ranks(self, waiting: WaitingView) -> ListLike[int]:
        """One number for each waiting sequence: the lowest is served first, and of equals the earlier arrival.

        Called once in a step that may admit somebody, so it should take less than 0.3 us a sequence. Mutates nothing.
        """
        ...

    def victim(self, running: list[Sequence]) -> Sequence:
        """Which of the running sequences (at least one) loses its blocks when there are too few."""
        ...


def latest_arrival(running: list[Sequence]) -> Sequence:
    """The usual victim: the one that came last. The oldest always goes on, so somebody always finishes."""
    return max(running, key=lambda sequence: sequence.arrival_idx)
