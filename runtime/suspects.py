"""Suspects: the requests of steps that failed, any of which may be the cause, and which of them are tried next.

A step that raises does not say for whom. Nothing of it was accepted, so all that were in it can be computed again: in
halves, and halves of the halves that fail, until one that fails alone is the cause, or nobody fails any more.

    a step of a b c d    fails
    a trial of a b       succeeds: they go on with all others
    a trial of c d       fails
    a trial of c         fails, and c with it
    a trial of d         succeeds

A group has passed its trial when all that were to be computed in the failed step are: one step as a rule, several for
those who lost their blocks. So nobody is tried for ever, and whoever fails a step twice has got on in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from .sequence import Sequence


class Suspects:
    """Groups of requests to be tried one after another. Belongs to a scheduler.

    Attributes:
        is_trial: the plan that is being made is of the first group alone, not of those who are under no suspicion.
    """

    def __init__(self) -> None:
        self.is_trial = False
        self._goals: dict[str, dict[Sequence, int]] = {}  # by request: how far each is to be computed
        self._groups: deque[list[str]] = deque()

    def __bool__(self) -> bool:
        return bool(self._goals)

    @property
    def request_ids(self) -> list[str]:
        return list(self._goals)

    def add(self, goals: Mapping[Sequence, int]) -> None:
        """A step failed in which these were to be computed that far. They are tried before those who are suspects
        already, in two halves; of a group that they are part of, the others stay a group. O(suspects)."""
        by_request: dict[str, dict[Sequence, int]] = {}
        for sequence, end in goals.items():
            by_request.setdefault(sequence.request.request_id, {})[sequence] = end
        self._remove(by_request)
        for request_id, ends in by_request.items():
            self._goals[request_id] = self._goals.get(request_id, {}) | ends
        request_ids = list(by_request)
        middle = -(-len(request_ids) // 2)
        self._groups.extendleft(half for half in (request_ids[middle:], request_ids[:middle]) if half)

    def drop_cleared(self) -> None:
        """Those who have got as far as they should, or have ended, are suspects no more. O(suspects)."""
        if not self._goals:
            return
        cleared = {
            request_id: goals
            for request_id, goals in self._goals.items()
            if all(sequence.is_finished or sequence.num_computed_tokens >= end for sequence, end in goals.items())
        }
        self._remove(cleared)
        for request_id in cleared:
            del self._goals[request_id]
        if not self._goals:
            self.is_trial = False

    def take_turns(self) -> None:
        """The next plan is of the first group if this one is of the others, and the other way round."""
        self.is_trial = not self.is_trial

    def may_run(self, sequence: Sequence) -> bool:
        """Whether the plan that is being made may have a part of this sequence."""
        request_id = sequence.request.request_id
        return request_id in self._groups[0] if self.is_trial else request_id not in self._goals

    def _remove(self, request_ids: Mapping[str, object]) -> None:
        """Take these out of their groups."""
        groups = [[each for each in group if each not in request_ids] for group in self._groups]
        self._groups = deque(group for group in groups if group)
