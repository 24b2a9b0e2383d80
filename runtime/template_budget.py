"""TemplateBudget: what the templates of one piece of work may use, however often they are rendered for it."""

from __future__ import annotations

from time import thread_time

MAX_TOTAL_STEPS = 1_000_000
MAX_SECONDS = 1.0
_SPENDINGS_PER_LOOK = 16
"""Looking at the clock costs as much as a step."""
_MAX_SECONDS_PER_LOOK = 0.1
"""More is not the template's doing: the thread collected garbage, say, or the machine stood still. What takes long at
a time is paid for in steps."""


class TemplateRefusedError(Exception):
    """The template itself called raise_exception, or ran out of its bounds. The message is for the user."""


class TemplateBudget:
    """Steps, and seconds of the processor. For the thread that makes it: the time that others take does not count.

    A conversation is rendered several times: to find out how the template writes tool calls, for the text itself, with
    marks in place of the contents, and to find the message that it refuses. All that is one piece of work.
    """

    def __init__(self, max_steps: int = MAX_TOTAL_STEPS, max_seconds: float = MAX_SECONDS) -> None:
        self._max_steps = max_steps
        self._max_seconds = max_seconds
        self._num_steps = 0
        self._num_spendings = 0
        self._num_seconds = 0.0
        self._seen_at = thread_time()

    def spend(self, num_steps: int) -> None:
        """
        Raises:
            TemplateRefusedError: there is not as much left, or the time is over.
        """
        self._num_steps += num_steps
        self._num_spendings += 1
        if self._num_steps > self._max_steps:
            raise TemplateRefusedError(f"the template takes more than {self._max_steps} steps for one conversation")
        if self._num_spendings % _SPENDINGS_PER_LOOK == 0:
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        now = thread_time()
        self._num_seconds += min(now - self._seen_at, _MAX_SECONDS_PER_LOOK)
        self._seen_at = now
        if self._num_seconds > self._max_seconds:
            raise TemplateRefusedError(
                f"the template takes more than {self._max_seconds:g} s of the processor for one conversation"
            )
