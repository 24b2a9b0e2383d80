"""Finds texts that a regular expression matches in a text that arrives character by character.

The search keeps, for every state of the regex's automaton that some tail of the text leads to, where the longest such
tail begins (Thompson, "Regular expression search algorithm", CACM 11(6), 1968). The first place at which a tail is
accepted ends the text; how far the longest tail reaches back is exactly what may still become a match.
"""

from __future__ import annotations

from .grammar.errors import UnsupportedRegexError
from .grammar.regex import parse_regex
from .grammar.regex.analysis import num_positions
from .grammar.regex.source_scan import scan_source
from .grammar.regex_automaton import ACCEPTING, RegexAutomaton

MAX_STOP_REGEX_POSITIONS = 512
"""Every character of a text may be compared with so many places of a pattern, some microseconds each."""

_MAX_NESTING = 100


_MAX_KNOWN_STEPS = 16384


class StopRegex:
    """A pattern that ends a text. Threads may share one.

    Attributes:
        start_states: of the automaton.
    """

    def __init__(self, pattern: str, automaton: RegexAutomaton) -> None:
        self.pattern = pattern
        self.automaton = automaton
        start = automaton.start()
        self.start_states = () if start is None else tuple(sorted(start.states))
        self._known_steps: dict[tuple[int, str], tuple[int, ...]] = {}

    def states_after(self, state: int, char: str) -> tuple[int, ...]:
        """Where a character leads from a state. What was asked lately is remembered."""
        step = self._known_steps.get((state, char))
        if step is None:
            if len(self._known_steps) >= _MAX_KNOWN_STEPS:
                self._known_steps.clear()
            step = self._known_steps[state, char] = tuple(sorted(self.automaton.states_after(state, char)))
        return step


def compile_stop_regex(pattern: str) -> StopRegex:
    """
    Raises:
        UnsupportedRegexError: it uses what cannot be decided character by character, anchors included, or is too large.
    """
    regex = parse_regex(pattern)
    anchors = scan_source(pattern, _MAX_NESTING).anchors
    if anchors:
        position, text = anchors[0]
        reason = f"a stop_regex is looked for everywhere in the text, so {text} has no meaning in it; leave it out"
        raise UnsupportedRegexError(pattern, position, reason)
    size = num_positions(regex)
    if size > MAX_STOP_REGEX_POSITIONS:
        reason = (
            f"with its repeats written out it has {size} characters, at most {MAX_STOP_REGEX_POSITIONS} are allowed in "
            "a stop_regex"
        )
        raise UnsupportedRegexError(pattern, None, reason)
    return StopRegex(pattern, RegexAutomaton(regex))


class StopRegexMatcher:
    """Follows one text, character by character, with one pattern."""

    def __init__(self, regex: StopRegex) -> None:
        self.pattern = regex.pattern
        self._regex = regex
        self._num_chars = 0
        self._tail_starts: dict[int, int] = {}  # state to where the longest tail that leads to it begins; in that order

    @property
    def num_held_chars(self) -> int:
        """Length of the longest tail of the text so far that a match may begin with."""
        return self._num_chars - next(iter(self._tail_starts.values()), self._num_chars)

    def feed(self, char: str) -> int | None:
        """Take in one more character. Returns the length of the longest match that ends with it, if there is one."""
        tails = self._tail_starts
        for state in self._regex.start_states:
            tails.setdefault(state, self._num_chars)
        after: dict[int, int] = {}
        for state, start in tails.items():
            for next_state in self._regex.states_after(state, char):
                after.setdefault(next_state, start)
        self._num_chars += 1
        start_of_match = after.pop(ACCEPTING, None)
        self._tail_starts = after
        return None if start_of_match is None else self._num_chars - start_of_match

    def reset(self) -> None:
        """Another text begins."""
        self._tail_starts = {}
