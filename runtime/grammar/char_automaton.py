"""CharAutomaton: a regex as a deterministic automaton over characters, for questions that need all of it.

Which texts are forced, whether two patterns mean the same, whether a member can be the beginning of another: for
reports, for the ablation that jumps over forced text as the SGLang paper does, for tests. Masks never come from here.

The alphabet is not that of Unicode but one character for each class of characters that the regex treats alike, so that
`[^"]` costs two symbols. Writing a regex out may take exponentially many states: there are limits.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from interegular.fsm import FSM, Alphabet

from .errors import GrammarBudgetError
from .regex import Regex
from .regex.char_sets import ALL_CHARS, CharSet, CodeRange
from .regex.syntax import Literal, OneOf, fold
from .regex_automaton import Beginning, RegexAutomaton

MAX_STATES = 5_000
MAX_TRANSITIONS = 200_000
MAX_RANGES = 20_000
MAX_SECONDS = 5.0
# Pairs of states that a comparison of two automata may have to look at.
MAX_PAIRS = 250_000


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from a state to another: a text that nothing else can take the place of, or any one of some characters."""

    chars: str | CharSet
    target: int


class CharAutomaton:
    """Every state that a regex has, written out. State 0 is the start. Immutable.

    Args:
        alphabet_of: other regexes whose characters to tell apart too: automata can be compared only if they were made
            with the same ones.

    Raises:
        GrammarBudgetError: it has too many states, transitions or ranges of characters, or takes too long.
    """

    def __init__(self, regex: Regex, alphabet_of: Sequence[Regex] = ()) -> None:
        self._classes = char_classes((regex, *alphabet_of))
        self._symbols = [chr(chars.ranges[0][0]) for chars in self._classes]
        self._transitions, self._finals = self._write_out(RegexAutomaton(regex))

    def to_fsm(self) -> FSM:
        """The automaton in interegular's form, for its algebra. A symbol is the first character of its class.

        Mind that interegular sets itself no limits: products of automata can take minutes.
        """
        return FSM(
            alphabet=Alphabet({symbol: key for key, symbol in enumerate(self._symbols)}),
            states=set(range(self.num_states)),
            initial=0,
            finals=self._finals,
            map=dict(enumerate(self._transitions)),
        )

    def _write_out(self, automaton: RegexAutomaton) -> tuple[list[dict[int, int]], set[int]]:
        start = automaton.start()
        if start is None:
            return [{}], set()
        deadline = time.monotonic() + MAX_SECONDS
        known: dict[Beginning, int] = {start: 0}
        beginnings = [start]
        transitions: list[dict[int, int]] = []
        num_transitions = 0
        while len(transitions) < len(beginnings):
            beginning = beginnings[len(transitions)]
            allowed = automaton.next_chars(beginning)
            targets: dict[int, int] = {}
            for key, symbol in enumerate(self._symbols):
                longer = automaton.advance(beginning, symbol.encode()) if symbol in allowed else None
                if longer is not None:
                    targets[key] = known.setdefault(longer, len(beginnings))
                    if targets[key] == len(beginnings):
                        beginnings.append(longer)
            transitions.append(targets)
            num_transitions += len(targets)
            if len(beginnings) > MAX_STATES or num_transitions > MAX_TRANSITIONS or time.monotonic() > deadline:
                raise GrammarBudgetError(
                    f"written out, the regex has more than {MAX_STATES} states or {MAX_TRANSITIONS} transitions, or it "
                    f"takes more than {MAX_SECONDS:g} seconds"
                )
        return transitions, {state for state, beginning in enumerate(beginnings) if automaton.is_accepting(beginning)}

    @property
    def num_states(self) -> int:
        return len(self._transitions)

    @property
    def is_empty(self) -> bool:
        """Whether there is no member."""
        return not self._finals

    def is_member(self, text: str) -> bool:
        state: int | None = 0
        for char in text:
            state = None if state is None else self._after(state, char)
        return state is not None and state in self._finals

    def is_final(self, state: int | None) -> bool:
        """Whether a text may end in a state; None is the state from which there is no way to a member."""
        return state in self._finals

    def steps(self, state: int | None) -> dict[str, int]:
        """The state after the first character of each class that may come next."""
        after = {} if state is None else self._transitions[state]
        return {self._symbols[key]: target for key, target in after.items()}

    def edges(self, state: int) -> list[Edge]:
        """The ways on from a state, of the compressed automaton: forced characters are joined into one text."""
        forced, target = self._forced_from(state)
        if forced:
            return [Edge(forced, target)]
        targets: dict[int, list[CodeRange]] = {}
        for key, next_state in self._transitions[state].items():
            targets.setdefault(next_state, []).extend(self._classes[key].ranges)
        return [Edge(CharSet.of_ranges(ranges), next_state) for next_state, ranges in targets.items()]

    def forced_after(self, beginning: str) -> str:
        """The text with which every member goes on that begins so; "" where there is a choice, or no such member."""
        state: int | None = 0
        for char in beginning:
            state = None if state is None else self._after(state, char)
        return "" if state is None else self._forced_from(state)[0]

    def forced_stretches(self, text: str) -> Iterator[tuple[str, bool]]:
        """A member cut into stretches, each with whether it is forced: what a jump would append without sampling."""
        position, state = 0, 0
        free: list[str] = []
        while position < len(text):
            forced, target = self._forced_from(state)
            if forced:
                if free:
                    yield "".join(free), False
                    free = []
                yield forced, True
                state = target
                position += len(forced)
                continue
            next_state = self._after(state, text[position])
            assert next_state is not None, "the text is a member"
            free.append(text[position])
            state = next_state
            position += 1
        if free:
            yield "".join(free), False

    def member_that_goes_on(self) -> str | None:
        """The shortest member that is the beginning of another one, None where there is none."""
        texts = {0: ""}
        queue = [0]
        for state in queue:
            if state in self._finals and self._transitions[state]:
                return texts[state]
            for key, next_state in self._transitions[state].items():
                if next_state not in texts:
                    texts[next_state] = texts[state] + self._symbols[key]
                    queue.append(next_state)
        return None

    def _after(self, state: int, char: str) -> int | None:
        return next((target for key, target in self._transitions[state].items() if char in self._classes[key]), None)

    def _forced_from(self, state: int) -> tuple[str, int]:
        """The forced text after a state, and the state after it."""
        forced: list[str] = []
        seen: set[int] = set()
        while state not in self._finals and state not in seen and len(self._transitions[state]) == 1:
            seen.add(state)
            ((key, target),) = self._transitions[state].items()
            char = self._classes[key].only_char
            if char is None:
                break
            forced.append(char)
            state = target
        return "".join(forced), state


def difference(left: Regex, right: Regex) -> str | None:
    """One of the shortest texts that only one of two regexes has, None where they mean the same.

    Raises:
        GrammarBudgetError: one is too large, or both together are.
    """
    a, b = CharAutomaton(left, (right,)), CharAutomaton(right, (left,))
    texts: dict[tuple[int | None, int | None], str] = {(0, 0): ""}
    queue = list(texts)
    for states in queue:
        if a.is_final(states[0]) != b.is_final(states[1]):
            return texts[states]
        for symbol, target in _steps_together(a, b, *states):
            if target not in texts:
                texts[target] = texts[states] + symbol
                queue.append(target)
        if len(queue) > MAX_PAIRS:
            raise GrammarBudgetError(f"{a.num_states} and {b.num_states} states are too many to compare")
    return None


def _steps_together(
    a: CharAutomaton, b: CharAutomaton, a_state: int | None, b_state: int | None
) -> Iterator[tuple[str, tuple[int | None, int | None]]]:
    """Each character after which at least one of two automata goes on, with the states after it."""
    a_after, b_after = a.steps(a_state), b.steps(b_state)
    for symbol in dict.fromkeys((*a_after, *b_after)):
        yield symbol, (a_after.get(symbol), b_after.get(symbol))


def prefix_pairs(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Texts that are the beginning of another, each with the next one that goes on. Cost: O(n log n)."""
    return [(short, longer) for short, longer in pairwise(sorted(texts)) if longer.startswith(short)]


def char_classes(regexes: Sequence[Regex]) -> list[CharSet]:
    """All characters, divided into sets that no part of some regexes tells apart.

    Raises:
        GrammarBudgetError: the regexes have too many ranges of characters.
    """
    char_sets = sorted({chars for regex in regexes for chars in _char_sets(regex)}, key=lambda chars: chars.ranges)
    if sum(len(chars.ranges) for chars in char_sets) > MAX_RANGES:
        raise GrammarBudgetError(f"the regex has more than {MAX_RANGES} ranges of characters")
    bounds: dict[int, list[int]] = {}
    for idx, chars in enumerate((*char_sets, ALL_CHARS)):
        for first, last in chars.ranges:
            bounds.setdefault(first, []).append(idx)
            bounds.setdefault(last + 1, []).append(idx)
    members: dict[frozenset[int], list[CodeRange]] = {}
    holding: frozenset[int] = frozenset()
    for first, end in pairwise([*sorted(bounds), 0]):
        holding = holding.symmetric_difference(bounds[first])
        if holding:
            members.setdefault(holding, []).append((first, end - 1))
    return [CharSet.of_ranges(ranges) for ranges in members.values()]


def _char_sets(regex: Regex) -> set[CharSet]:
    """The sets of characters that occur in a regex."""
    found: set[CharSet] = set()

    def combine(node: Regex, _: list[None]) -> None:
        if isinstance(node, OneOf):
            found.add(node.chars)
        elif isinstance(node, Literal):
            found.update(CharSet(((ord(char), ord(char)),)) for char in set(node.text))

    fold(regex, combine)
    return found
