"""StopFinder: where in a growing text a stop string, or a text that a stop regex matches, is complete first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .stop_matcher import StopMatcher
from .stop_regex import StopRegex, StopRegexMatcher


@dataclass(frozen=True, slots=True)
class StopMatch:
    """What ended a text.

    Attributes:
        reason: the stop string, or the pattern of the stop regex.
        num_chars: length of the match.
        num_chars_after: of the text that follow it, where it shows later that it is one (see SealedStops).
    """

    reason: str
    num_chars: int
    num_chars_after: int = 0


class StopFinder:
    """Follows one text. Of several stops that are complete at the same character the longest match counts; of equally
    long ones a string before a regex, and the first regex."""

    def __init__(self, stop_strings: Sequence[str], stop_regexes: Sequence[StopRegex] = ()) -> None:
        self._strings = StopMatcher(stop_strings)
        self._regexes = [StopRegexMatcher(regex) for regex in stop_regexes]

    @property
    def num_held_chars(self) -> int:
        """Length of the longest tail of the text so far that may become a stop."""
        return max(self._strings.num_held_chars, *(regex.num_held_chars for regex in self._regexes), 0)

    def feed(self, char: str, *, may_stop: bool = True) -> StopMatch | None:
        """Take in one more character. Returns what is complete with it, if anything.

        Args:
            may_stop: otherwise what is complete here is ordinary text.
        """
        stop = self._strings.feed(char)
        best = None if stop is None else StopMatch(stop, len(stop))
        for regex in self._regexes:
            num_chars = regex.feed(char)
            if num_chars is not None and (best is None or num_chars > best.num_chars):
                best = StopMatch(regex.pattern, num_chars)
        return best if may_stop else None

    def finish(self) -> StopMatch | None:
        """The text has ended. All that was complete has been told."""
        return None

    def reset(self) -> None:
        """Another text begins."""
        self._strings.reset()
        for regex in self._regexes:
            regex.reset()
