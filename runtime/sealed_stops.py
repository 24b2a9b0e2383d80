"""SealedStops: the stops of a text that has sealed parts, such as tool calls, which no stop can cut.

    I look.\\n\\n<tool_call>\\n{...}\\n</tool_call>\\n      stop string "\\n"
           \\__ may belong to the part: the stop waits
               \\__ begins it: the stop is forgotten

So a stop that is complete in what may turn out to be the beginning of a part waits until that is decided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .stop_finder import StopFinder, StopMatch
from .stop_matcher import StopMatcher


@dataclass(frozen=True, slots=True)
class SealedPart:
    """A part of a text that no stop cuts; nor does one end in the white space before it.

    Attributes:
        begin: what it begins with, which is no white space.
        end: what it ends with, after which stops count again. None: it begins where the text does, and never ends.
    """

    begin: str
    end: str | None


class SealedStops:
    """Follows one text with any number of sealed parts, which do not lie in each other. Used like a StopFinder."""

    def __init__(self, finder: StopFinder, part: SealedPart) -> None:
        self._finder = finder
        self._part = part
        self._begin: StopMatcher | None = StopMatcher([part.begin])
        self._end = StopMatcher([] if part.end is None else [part.end])
        self._is_inside = False
        self._num_spaces = 0  # before what may be the beginning of a part
        self._num_unsure_chars = 0  # at the end of the text: these spaces, and that beginning
        self._waiting: StopMatch | None = None

    @property
    def num_held_chars(self) -> int:
        """Length of the longest tail of the text so far that is, or may become, a stop."""
        if self._is_inside:
            return 0
        if self._waiting is not None:
            return self._waiting.num_chars + self._waiting.num_chars_after
        return self._finder.num_held_chars

    def feed(self, char: str, *, may_stop: bool = True) -> StopMatch | None:
        """Take in one more character. Returns what turns out to be a stop with it, if anything."""
        if self._is_inside:
            if self._end.feed(char) is not None:
                self._leave()
            return None
        if self._begins_with(char):
            self._is_inside, self._waiting = True, None
            return None
        if self._waiting is None:
            self._waiting = self._finder.feed(char, may_stop=may_stop)
        else:
            self._waiting = replace(self._waiting, num_chars_after=self._waiting.num_chars_after + 1)
        is_sure = self._waiting is not None and self._waiting.num_chars_after >= self._num_unsure_chars
        return self._waiting if is_sure else None

    def finish(self) -> StopMatch | None:
        """The text has ended, and no part has begun."""
        return self._waiting

    def _leave(self) -> None:
        self._is_inside = False
        self._begin, self._num_spaces, self._num_unsure_chars = StopMatcher([self._part.begin]), 0, 0
        self._finder.reset()

    def _begins_with(self, char: str) -> bool:
        """Whether a part has begun with this character."""
        if self._begin is None:
            return False
        read = self._part.begin[: self._begin.num_held_chars] + char
        is_begun = self._begin.feed(char) is not None
        passed = read[: len(read) - self._begin.num_held_chars]
        num_spaces = len(passed) - len(passed.rstrip())
        self._num_spaces = num_spaces + (self._num_spaces if num_spaces == len(passed) else 0)
        self._num_unsure_chars = self._num_spaces + self._begin.num_held_chars
        if passed and self._part.end is None:
            self._begin, self._num_unsure_chars = None, 0
        return is_begun
