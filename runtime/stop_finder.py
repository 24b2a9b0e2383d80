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
        num_chars: length of the matching end of the text.
    """

    reason: str
    num_chars: int


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

    def feed(self, char: str) -> StopMatch | None:
        """Take in one more character. Returns what is complete with it, if anything."""
        stop = self._strings.feed(char)
        best = None if stop is None else StopMatch(stop, len(stop))
        for regex in self._regexes:
            num_chars = regex.feed(char)
            if num_chars is not None and (best is None or num_chars > best.num_chars):
                best = StopMatch(regex.pattern, num_chars)
        return best
