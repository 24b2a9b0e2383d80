"""A short way from a place in a grammar to the end of the text, for requests that must not be cut off in the middle.

It is looked for byte by byte: a token of one byte at each choice, whatever is forced in between. The choice is greedy.
What closes something comes first, then what ends a value, then a scalar rather than a structure; but nothing that leads
to a place like one before, so that loops are left; a text that goes round in circles all the same is searched breadth
first for the way out. Then every choice between a few ways, such as the values of an enum,
is tried the other ways, until the text meets the first one again. At last the bytes are cut into as few tokens as they
can be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .interface import GrammarState
from .vocabulary import GrammarVocabulary

MAX_PLACES = 1000
"""Places looked at on one way; each costs a fork and a mask, some 100 us."""
MAX_DETOUR_PLACES = 60
"""Places looked at to make a way shorter."""
MAX_TOKEN_BYTES = 16
MIN_BYTES = 2000
"""A first way may be this long even where few tokens are left: the detours may make it short."""
_MAX_DETOUR = 12
# More choices than these are the inside of a string, or of another text that is hardly constrained.
_MANY = 40
_FEW = 8
_CLOSERS = b"}]"
_ENDS = b',":'
_SCALARS = b"0ntf123456789"


def shortest_ending(
    state: GrammarState, vocabulary: GrammarVocabulary, max_tokens: int, *, is_any_enough: bool = False
) -> list[int] | None:
    """Tokens that lead from a state to acceptance: the fewest that are found, which for ordinary JSON are the fewest.

    The state is not changed.

    Args:
        is_any_enough: return the first way that is short enough; it may be longer than others.

    Returns:
        At most `max_tokens` tokens, [] if the text is complete already; None if no such ending was found.

    Cost: a few milliseconds for a schema of ten properties.
    """
    if state.is_accepting:
        return []
    if max_tokens <= 0:
        return None
    search = _Search(vocabulary, MAX_PLACES)
    start = _Place.reached(state.fork(), b"", vocabulary)
    path = search.greedy(start, max(max_tokens * MAX_TOKEN_BYTES, MIN_BYTES))
    if path is None:
        search.num_places_left = MAX_PLACES
        path = search.breadth_first(start)
    if path is None:
        return None
    tokens = search.tokens_of(state, path)
    if is_any_enough and tokens is not None and len(tokens) <= max_tokens:
        return tokens
    search.num_places_left = MAX_DETOUR_PLACES
    for idx in range(len(path)):
        for way in search.detours(path, idx):
            shorter = search.tokens_of(state, way)
            if shorter is not None and (tokens is None or len(shorter) < len(tokens)):
                path, tokens = way, shorter
                break
    return tokens if tokens is not None and len(tokens) <= max_tokens else None


Likeness = tuple[bytes, bytes, bool]


@dataclass(slots=True)
class _Place:
    """A place where there is a choice, or the end.

    Attributes:
        spelled: the bytes on the way here from the place before.
        mask: the tokens allowed, as bytes, to tell places apart.
        choices: the bytes that may come next and are tokens.
    """

    state: GrammarState
    spelled: bytes
    mask: bytes
    choices: bytes

    @staticmethod
    def reached(state: GrammarState, spelled: bytes, vocabulary: GrammarVocabulary) -> _Place:
        """Follow what is forced. Mutates the state."""
        words = np.empty(vocabulary.num_words, dtype=np.int32)
        while not state.is_accepting:
            forced = state.forced_tokens()
            if not forced:
                state.fill_mask(words)
                choices = vocabulary.single_bytes_in(words)
                if choices or not words.any():
                    return _Place(state, spelled, words.tobytes(), choices)
                # No byte alone: the shortest piece will do.
                forced = [vocabulary.shortest_token_in(words)]
            if state.try_accept(forced) != len(forced):
                break
            spelled += b"".join(vocabulary.token_bytes[token_id] for token_id in forced)
        return _Place(state, spelled, b"", b"")

    @property
    def is_end(self) -> bool:
        return self.state.is_accepting

    @property
    def likeness(self) -> Likeness:
        """What makes places look the same: what led there, but for the choice, and what may follow."""
        return self.spelled[1:], self.mask, self.is_end


class _Search:
    """Walks over forks.

    Attributes:
        num_places_left: how many places may still be looked at.
    """

    def __init__(self, vocabulary: GrammarVocabulary, num_places: int) -> None:
        self._vocabulary = vocabulary
        self.num_places_left = num_places

    def greedy(self, place: _Place, max_bytes: int) -> list[_Place] | None:
        """The places on a way to the end, the first one included; None if it leads nowhere or too far."""
        path = [place]
        seen = {place.likeness}
        num_bytes = len(place.spelled)
        while not path[-1].is_end:
            following = self._best_step(path[-1], seen)
            way = [following] if following is not None else []
            if following is None or (following.likeness in seen and len(following.choices) > _MANY):
                way = self._escape(path[-1])
            num_bytes += sum(len(place.spelled) for place in way)
            if not way or num_bytes > max_bytes:
                return None
            path += way
            seen.update(place.likeness for place in way)
        return path

    def _escape(self, place: _Place) -> list[_Place]:
        """The fewest choices that lead out of a text which goes round in circles, such as a string with a pattern:
        to where it can be closed, or the end. [] if there are none within the places left."""
        path = self.breadth_first(place, is_out=lambda following: ord('"') in following.choices)
        return path[1:] if path is not None else []

    def breadth_first(self, place: _Place, is_out: Callable[[_Place], bool] = lambda _: False) -> list[_Place] | None:
        """The way of the fewest choices to the end, or to the first place that `is_out`; it begins with `place`."""
        ways = deque([[place]])
        seen = {place.likeness}
        while ways:
            way = ways.popleft()
            for byte in way[-1].choices:
                following = self._step(way[-1], byte)
                if following is None or following.likeness in seen:
                    continue
                longer = [*way, following]
                if following.is_end or is_out(following):
                    return longer
                seen.add(following.likeness)
                ways.append(longer)
        return None

    def detours(self, path: list[_Place], start: int) -> Iterator[list[_Place]]:
        """Ways that choose otherwise at one place of the path, and meet it again or end."""
        if start + 1 >= len(path):
            return
        for byte in _other_choices(path[start].choices, path[start + 1].spelled[0]):
            way = self._detour(path, start, byte)
            if way is not None:
                yield way

    def _detour(self, path: list[_Place], start: int, byte: int) -> list[_Place] | None:
        meetings = {path[idx].likeness: idx for idx in range(len(path) - 1, start, -1)}
        way = path[: start + 1]
        seen = {place.likeness for place in way}
        following = self._step(path[start], byte)
        for _ in range(_MAX_DETOUR):
            if following is None:
                return None
            way.append(following)
            if following.is_end:
                return way
            if following.likeness in meetings:
                return way + path[meetings[following.likeness] + 1 :]
            seen.add(following.likeness)
            following = self._best_step(following, seen)
        return None

    def tokens_of(self, state: GrammarState, path: list[_Place]) -> list[int] | None:
        """The fewest tokens that spell a way, if the grammar accepts it."""
        tokens = self._vocabulary.fewest_tokens(b"".join(place.spelled for place in path), MAX_TOKEN_BYTES)
        trial = state.fork()
        if tokens is None or trial.try_accept(tokens) != len(tokens) or not trial.is_accepting:
            return None
        return tokens

    def _step(self, place: _Place, byte: int) -> _Place | None:
        if self.num_places_left <= 0:
            return None
        self.num_places_left -= 1
        following = place.state.fork()
        if not following.try_accept([self._vocabulary.token_of_spelling[bytes([byte])]]):
            return None
        reached = _Place.reached(following, bytes([byte]), self._vocabulary)
        return reached if reached.choices or reached.is_end else None

    def _best_step(self, place: _Place, seen: set[Likeness]) -> _Place | None:
        """The next place on a short way."""
        choices = place.choices
        if len(choices) > _MANY and ord('"') in choices:
            return self._step(place, ord('"'))
        found: list[_Place] = []
        for byte in _candidates(choices):
            following = self._step(place, byte)
            if following is None:
                continue
            if byte in _CLOSERS and following.likeness == place.likeness:  # a bracket in a string closes nothing
                continue
            if following.is_end or (len(choices) <= _MANY and _is_progress(byte, following, seen)):
                return following
            found.append(following)
        return min(found, key=lambda following: _distance(following, seen), default=None)


def _is_progress(byte: int, following: _Place, seen: set[Likeness]) -> bool:
    """Whether a choice brings the end nearer: it closes something, or a value can end after it, or it is new."""
    if byte in _CLOSERS:
        return True
    if chr(byte).isdigit() and following.choices.isdigit():
        return False  # a number that cannot end yet: perhaps another digit does better
    can_end = bool(set(following.choices) & set(_CLOSERS + b",")) or following.spelled[1:2] in (b",", b"}", b"]")
    return (byte in _SCALARS and can_end) or following.likeness not in seen


def _distance(following: _Place, seen: set[Likeness]) -> tuple[bool, bool, int]:
    """How far from the end a place seems to be: whether a string can be closed, and how much is allowed."""
    return ord('"') not in following.choices, following.likeness in seen, len(following.choices)


def _candidates(choices: bytes) -> list[int]:
    """The bytes to try, best first: closers, ends, scalars, other marks, letters, structures. Of many digits or
    letters, which are mostly alike, only one."""
    has_words = any(chr(byte).isalpha() and byte not in _SCALARS for byte in choices)
    order = _CLOSERS + _ENDS + (b"0123456789" if has_words else _SCALARS)
    rank = {byte: position for position, byte in enumerate(order)}

    def preference(byte: int) -> tuple[int, int]:
        if byte in rank:
            return 0, rank[byte]
        if byte in b"{[":
            return 3, byte
        return (2 if chr(byte).isalnum() else 1), byte

    ordered = sorted(choices, key=preference)
    if len(ordered) <= _FEW:
        return ordered
    chosen: dict[object, int] = {}
    for byte in ordered:
        chosen.setdefault(_kind(byte), byte)
    # After 0 some numbers need a fraction; after 9 they do not.
    return list(chosen.values()) + [byte for byte in b"9" if byte in choices]


def _kind(byte: int) -> object:
    if byte >= 0x80:
        return "other", byte >> 4
    if chr(byte).isdigit():
        return "digit"
    return ("letter", chr(byte).isupper()) if chr(byte).isalpha() else byte


def _other_choices(choices: bytes, taken: int) -> bytes:
    """The choices worth trying instead of the one taken: where a few are possible, and it closed nothing.

    Digits are tried only where they are very few: then they begin numbers of different lengths.
    """
    if len(choices) > _FEW or taken in _CLOSERS + b",":
        return b""
    rest = bytes(byte for byte in choices if byte != taken)
    is_digit = chr(taken).isdigit()
    return rest if not is_digit or len(choices) <= 3 else bytes(byte for byte in rest if not chr(byte).isdigit())
