"""RegexAutomaton: how a beginning of a text can go on to a member of a regex, and the shortest way to end it.

A state is what is left to match: a place inside one node of the regex, and the state after that node. States are
numbered as they are first met, so nothing is written out that no text reaches: `a{1,10000}` costs as many states as a
text has characters. The shortest text from a state is that of its node and then that of the state after it: both are
known without a search.

    (ab|c){2}d  after "a":   b, then (ab|c) once more, then d      shortest: "b" + "c" + "d"
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock

from .regex.analysis import cheapest_char, shortest_members
from .regex.char_sets import (
    ALL_CHARS,
    MAX_CODE_POINT,
    UTF8_FIRST_CODES,
    CharSet,
    CodeRange,
    utf8_len,
    utf8_prefix_chars,
)
from .regex.syntax import EMPTY, Alternation, Concat, Literal, OneOf, Regex, Repeat

ACCEPTING = 0
"""The state in which a text may end; it takes no character."""
# Longer than any text; sums with it are longer still.
_NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class Beginning:
    """The bytes of a text so far, as far as they matter for what may follow. Immutable, so a fork is free.

    Attributes:
        states: of the automaton, after the whole characters: those that take a character, and the accepting one. Never
            empty.
        partial_char: the bytes after them, which begin a character in UTF-8.
    """

    states: frozenset[int]
    partial_char: bytes = b""


@dataclass(frozen=True, slots=True)
class _Pending:
    """What a state has yet to match: a node, less what is done of it, and then another state.

    Attributes:
        done: characters of a Literal or parts of a Concat that are matched.
        counts: how often a Repeat may and must still be matched.
    """

    node: Regex
    rest: int
    done: int = 0
    counts: tuple[int, int | None] = (0, None)


@dataclass(frozen=True, slots=True)
class _Step:
    """How a state goes on: with a character, or without one to any of several states.

    Attributes:
        chars: the character (as str) or the set of characters; empty where none is taken.
        next_states: one of them where a character is taken.
    """

    chars: CharSet | str
    next_states: tuple[int, ...]


class RegexAutomaton:
    """The texts of a regex, and their beginnings. Threads may share one.

    Args:
        spellable: the characters that an ending may consist of: those that a vocabulary can spell. None allows all.
    """

    def __init__(self, regex: Regex, spellable: CharSet | None = None) -> None:
        self._spellable = ALL_CHARS if spellable is None else spellable
        self._shortest = shortest_members(regex, spellable)
        self._pending = [_Pending(EMPTY, ACCEPTING)]
        self._num_bytes = [0]
        self._states: dict[tuple[int, int, int, tuple[int, int | None]], int] = {}
        self._steps: dict[int, _Step] = {}
        self._suffix_num_bytes: dict[int, list[int]] = {}
        self._lock = Lock()
        self._start = self._closure([self._state(_entered(regex, ACCEPTING))])

    def start(self) -> Beginning | None:
        """The beginning without any bytes; None where the regex has no member."""
        return Beginning(self._start) if self._start else None

    def advance(self, beginning: Beginning, more: bytes) -> Beginning | None:
        """A beginning with more bytes; None where no member begins so. Cost: a few microseconds a byte and state."""
        states, partial_char = beginning.states, beginning.partial_char
        for byte in more:
            partial_char += bytes((byte,))
            char = _whole_char(partial_char)
            if char is not None:
                states, partial_char = self._after_char(states, char), b""
                if not states:
                    return None
        if partial_char and not self._can_complete(states, utf8_prefix_chars(partial_char)):
            return None
        return Beginning(states, partial_char)

    def beginning_of(self, text: bytes) -> Beginning | None:
        """The beginning that consists of some bytes; None where no member begins so."""
        start = self.start()
        return None if start is None else self.advance(start, text)

    def is_viable(self, text: bytes) -> bool:
        """Whether some member begins with these bytes, which may end inside a character."""
        return self.beginning_of(text) is not None

    def is_member(self, text: str) -> bool:
        beginning = self.beginning_of(text.encode())
        return beginning is not None and self.is_accepting(beginning)

    def is_accepting(self, beginning: Beginning) -> bool:
        """Whether the text may end here."""
        return not beginning.partial_char and ACCEPTING in beginning.states

    def can_go_on(self, beginning: Beginning) -> bool:
        """Whether the text may be longer."""
        return bool(beginning.states - {ACCEPTING})

    def next_chars(self, beginning: Beginning) -> CharSet:
        """The characters that may come next, or whose first bytes the beginning ends with."""
        char_sets = [_char_set(step.chars) for step in self._steps_of(beginning.states)]
        chars = CharSet.of_ranges(item for chars in char_sets for item in chars.ranges)
        return chars & utf8_prefix_chars(beginning.partial_char) if beginning.partial_char else chars

    def next_bytes(self, beginning: Beginning) -> list[int]:
        """The bytes that may come next, in ascending order."""
        num_done = len(beginning.partial_char)
        found: set[int] = set()
        for first, last in _split_by_utf8_len(self.next_chars(beginning)):
            found.update(range(chr(first).encode()[num_done], chr(last).encode()[num_done] + 1))
        return sorted(found)

    def residue(self, beginning: Beginning) -> Hashable:
        """What may follow, in a form in which beginnings inside different characters are equal if they go on alike."""
        if not beginning.partial_char:
            return beginning.states
        wished = utf8_prefix_chars(beginning.partial_char)
        first = wished.ranges[0][0]
        num_missing = utf8_len(chr(first)) - len(beginning.partial_char)
        base = first >> 6 * num_missing << 6 * num_missing
        ways = set()
        for step in self._steps_of(beginning.states):
            ranges = (_char_set(step.chars) & wished).ranges
            if ranges:
                ways.add((tuple((first - base, last - base) for first, last in ranges), step.next_states))
        return num_missing, frozenset(ways)

    def shortest_ending(self, beginning: Beginning) -> bytes | None:
        """The fewest bytes that make the beginning a member; None where the spellable characters do not suffice.

        The first in order where several are equally short.
        """
        if beginning.partial_char:
            return self._ending_of_char(beginning)
        return self._shortest_of((b"", state) for state in beginning.states)

    def _ending_of_char(self, beginning: Beginning) -> bytes | None:
        num_done = len(beginning.partial_char)
        wished = utf8_prefix_chars(beginning.partial_char) & self._spellable
        ways: list[tuple[bytes, int]] = []
        for step in self._steps_of(beginning.states):
            char = cheapest_char(_char_set(step.chars) & wished)
            if char is not None:
                ways.append((char.encode()[num_done:], step.next_states[0]))
        return self._shortest_of(ways)

    def _shortest_of(self, ways: Iterable[tuple[bytes, int]]) -> bytes | None:
        """The shortest of some bytes followed by the shortest text from a state."""
        lengths = {(head, state): len(head) + self._num_bytes[state] for head, state in ways}
        shortest = min(lengths.values(), default=_NEVER)
        if shortest >= _NEVER:
            return None
        return min(head + self._text(state).encode() for (head, state), length in lengths.items() if length == shortest)

    def states_after(self, state: int, char: str) -> frozenset[int]:
        """Where a character leads from one of a beginning's states: states that take a character, and ACCEPTING."""
        if state == ACCEPTING:
            return frozenset()
        step = self._step(state)
        return self._closure([step.next_states[0]]) if char in step.chars else frozenset()

    def _after_char(self, states: frozenset[int], char: str) -> frozenset[int]:
        return self._closure([step.next_states[0] for step in self._steps_of(states) if char in step.chars])

    def _can_complete(self, states: frozenset[int], chars: CharSet) -> bool:
        return any(bool(_char_set(step.chars) & chars) for step in self._steps_of(states)) if chars else False

    def _steps_of(self, states: Iterable[int]) -> list[_Step]:
        return [self._step(state) for state in states if state != ACCEPTING]

    def _closure(self, states: list[int]) -> frozenset[int]:
        """The accepting state and those that take a character, as far as they are reached without one."""
        seen = set(states)
        stack = list(seen)
        reached: list[int] = []
        while stack:
            state = stack.pop()
            if state == ACCEPTING or self._step(state).chars:
                reached.append(state)
                continue
            entered = [entered for entered in self._step(state).next_states if entered not in seen]
            seen.update(entered)
            stack.extend(entered)
        return frozenset(reached)

    def _step(self, state: int) -> _Step:
        step = self._steps.get(state)
        if step is None:
            with self._lock:
                step = self._steps[state] = self._find_step(self._pending[state])
        return step

    def _find_step(self, pending: _Pending) -> _Step:
        node, rest = pending.node, pending.rest
        match node:
            case Literal(text):
                if not text:
                    return _Step("", (rest,))
                return _Step(text[pending.done], (self._after_part(node, pending.done + 1, len(text), rest),))
            case OneOf(chars):
                return _Step(chars, (rest,))
            case Concat(parts):
                after_part = self._after_part(node, pending.done + 1, len(parts), rest)
                return _Step("", (self._state(_entered(parts[pending.done], after_part)),))
            case Alternation(branches):
                return _Step("", tuple(self._state(_entered(branch, rest)) for branch in branches))
            case Repeat(body):
                return _Step("", self._enter_repeat(body, pending))

    def _enter_repeat(self, body: Regex, pending: _Pending) -> tuple[int, ...]:
        at_least, at_most = pending.counts
        counts = max(at_least - 1, 0), None if at_most is None else at_most - 1
        after_body = pending.rest
        if counts[1] != 0:
            after_body = self._state(_Pending(pending.node, pending.rest, counts=counts))
        entered = self._state(_entered(body, after_body))
        return (entered,) if at_least else (entered, pending.rest)

    def _after_part(self, node: Regex, num_done: int, num_parts: int, rest: int) -> int:
        return rest if num_done == num_parts else self._state(_Pending(node, rest, num_done))

    def _state(self, pending: _Pending) -> int:
        """The number of a state, new or known."""
        key = (id(pending.node), pending.rest, pending.done, pending.counts)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = len(self._pending)
            self._pending.append(pending)
            self._num_bytes.append(self._node_num_bytes(pending) + self._num_bytes[pending.rest])
        return state

    def _node_num_bytes(self, pending: _Pending) -> int:
        """Length of the shortest text that is left of a node."""
        match pending.node:
            case Repeat(body):
                return pending.counts[0] * self._member_num_bytes(body) if pending.counts[0] else 0
            case Literal(text) | Concat(text) if pending.done:
                return self._suffixes(pending.node, text)[pending.done]
            case node:
                return self._member_num_bytes(node)

    def _member_num_bytes(self, node: Regex) -> int:
        text = self._shortest[id(node)]
        return _NEVER if text is None else len(text.encode())

    def _suffixes(self, node: Regex, parts: str | tuple[Regex, ...]) -> list[int]:
        """Lengths of the shortest texts from each part of a node to its end."""
        known = self._suffix_num_bytes.get(id(node))
        if known is None:
            known = [0]
            for part in reversed(parts):
                known.append(
                    known[-1] + (self._char_num_bytes(part) if isinstance(part, str) else self._member_num_bytes(part))
                )
            known.reverse()
            self._suffix_num_bytes[id(node)] = known
        return known

    def _char_num_bytes(self, char: str) -> int:
        return len(char.encode()) if char in self._spellable else _NEVER

    def _text(self, state: int) -> str:
        """The shortest text from a state, which has one."""
        pieces: list[str] = []
        while state != ACCEPTING:
            pending = self._pending[state]
            pieces.extend(self._node_texts(pending))
            state = pending.rest
        return "".join(pieces)

    def _node_texts(self, pending: _Pending) -> Iterable[str]:
        match pending.node:
            case Repeat(body):
                return [self._member(body)] * pending.counts[0] if pending.counts[0] else []
            case Literal(text):
                return [text[pending.done :]]
            case Concat(parts):
                return map(self._member, parts[pending.done :])
            case node:
                return [self._member(node)]

    def _member(self, node: Regex) -> str:
        text = self._shortest[id(node)]
        assert text is not None, "the state has a shortest text, so every node of it has one"
        return text


def _entered(node: Regex, rest: int) -> _Pending:
    """A node of which nothing is matched yet."""
    if isinstance(node, Repeat):
        return _Pending(node, rest, counts=(node.min_count, node.max_count))
    return _Pending(node, rest)


def _char_set(chars: CharSet | str) -> CharSet:
    return CharSet.of_text(chars) if isinstance(chars, str) else chars


def _split_by_utf8_len(chars: CharSet) -> Iterable[CodeRange]:
    """The ranges of a set, cut so that all characters of one have as many bytes."""
    bounds = (*UTF8_FIRST_CODES, MAX_CODE_POINT + 1)
    for first, last in chars.ranges:
        for low, high in pairwise(bounds):
            if first < high and last >= low:
                yield max(first, low), min(last, high - 1)


def _whole_char(data: bytes) -> str | None:
    """The character that some bytes are, None where they are no whole one."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
