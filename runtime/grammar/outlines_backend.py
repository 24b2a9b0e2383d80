"""OutlinesBackend: grammars as a table of tokens for every state, made in advance by outlines-core.

A mask costs a look-up, but the table costs a walk through the vocabulary for each state, and it may lack texts:
outlines-core gives alternatives the order of a matcher (of `a|ab` it only ever produces `a`), and where a text may end
it drops tokens after which it may not (of `a(?:bc)?` it cannot go on with `b`). So a pattern is taken only if its table
for single bytes is the pattern's own automaton: the two are walked side by side over everything they can reach.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Thread
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from outlines_core import Index, Vocabulary

from ...grammar_spec import GrammarSpec
from .endings import ending_of
from .errors import GrammarBudgetError, GrammarError, GrammarVocabularyError
from .interface import Ending
from .regex.emit import rust_text
from .regex.spec_regex import spec_regex
from .regex_automaton import RegexAutomaton
from .vocabulary import GrammarVocabulary, token_words

_T = TypeVar("_T")

MAX_SECONDS = 0.9
MAX_BYTE_STATES = 2_000
# States times tokens; outlines-core makes some 10 million a second.
MAX_TABLE_WORK = 40_000_000
_MAX_CACHED_MASKS = 256
_NUM_BYTES = 256


class OutlinesBackend:
    """Compiles regular expressions and choices with outlines-core."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        token_ids: dict[bytes, list[int]] = {}
        for token_id, spelling in enumerate(vocabulary.token_bytes):
            if spelling:
                token_ids.setdefault(spelling, []).append(token_id)
        # The end token is the engine's business: here it is an id that no token has.
        self._outlines_vocabulary = Vocabulary(vocabulary.vocab_size, token_ids)

    def compile(self, spec: GrammarSpec) -> OutlinesGrammar:
        """Compile a regex or choices.

        Raises:
            GrammarError: of another kind; without a member; or one of which outlines-core would produce only some
                members. The message names a text that it leaves out.
            UnsupportedRegexError: see parse_regex.
            GrammarBudgetError: it takes more than MAX_SECONDS or too many states.
            GrammarVocabularyError: the vocabulary lacks a token that it needs.

        Cost: up to MAX_SECONDS; a thread that outlines-core does not leave in time runs on in the background.
        """
        if spec.kind not in ("regex", "choices"):
            raise GrammarError(
                f"grammar_backend='outlines' takes a regex or choices, not {spec.kind}: leave it out for the default"
            )
        regex = spec_regex(spec, self._vocabulary.spellable_chars)
        vocab_size = self._vocabulary.vocab_size
        deadline = time.monotonic() + MAX_SECONDS
        text = rust_text(regex)
        table = _byte_table(RegexAutomaton(regex), deadline)
        if len(table) * vocab_size > MAX_TABLE_WORK:
            raise GrammarBudgetError(
                f"it has {len(table)} states, too many to go through {vocab_size} tokens for each; "
                "use the default backend"
            )
        _check_same_language(_in_time(lambda: Index(text, _byte_vocabulary()), deadline), table)
        index = _in_time(lambda: Index(text, self._outlines_vocabulary), deadline)
        return OutlinesGrammar(index, spec, self._vocabulary)


def _in_time(build: Callable[[], _T], deadline: float) -> _T:
    """What `build` returns, or an error of ours."""
    results: list[_T | BaseException] = []

    def run() -> None:
        try:
            results.append(build())
        except BaseException as error:  # reported by the caller's thread; a panic in Rust is no Exception
            results.append(error)

    thread = Thread(target=run, name="ramet-outlines", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if not results:
        raise GrammarBudgetError(f"outlines-core takes more than {MAX_SECONDS:g} seconds; use the default backend")
    if isinstance(results[0], BaseException):
        # outlines-core has one type of error; only its text tells a token that is missing from anything else.
        error_type = GrammarVocabularyError if "vocabulary" in str(results[0]).lower() else GrammarError
        raise error_type(f"outlines-core cannot build its table: {results[0]}") from results[0]
    return results[0]


def _byte_vocabulary() -> Vocabulary:
    return Vocabulary(_NUM_BYTES, {bytes((byte,)): [byte] for byte in range(_NUM_BYTES)})


@dataclass(frozen=True, slots=True)
class _ByteState:
    """A state of the automaton by bytes: whether a text may end, and the state (an index) after each byte."""

    is_accepting: bool
    after: dict[int, int]


def _byte_table(automaton: RegexAutomaton, deadline: float) -> list[_ByteState]:
    """The automaton written out, byte by byte; the state without bytes comes first."""
    start = automaton.start()
    assert start is not None, "the regex has members"
    table: list[_ByteState] = []
    beginnings = [start]
    known = {automaton.residue(start): 0}
    while len(table) < len(beginnings):
        beginning = beginnings[len(table)]
        after: dict[int, int] = {}
        for byte in automaton.next_bytes(beginning):
            longer = automaton.advance(beginning, bytes((byte,)))
            assert longer is not None, "the byte may come next"
            after[byte] = known.setdefault(automaton.residue(longer), len(beginnings))
            if after[byte] == len(beginnings):
                beginnings.append(longer)
        if len(beginnings) > MAX_BYTE_STATES or time.monotonic() > deadline:
            raise GrammarBudgetError(
                f"it has more than {MAX_BYTE_STATES} states or takes more than {MAX_SECONDS:g} seconds to write out, "
                "too much for the outlines backend; use the default one"
            )
        table.append(_ByteState(automaton.is_accepting(beginning), after))
    return table


def _check_same_language(index: Index, table: list[_ByteState]) -> None:
    """Walk the table of outlines-core for single bytes and the automaton side by side.

    If every byte that may come next is in the one where it is in the other, so is every token: outlines-core judges a
    token by the states before and after its last byte.

    Raises:
        GrammarError: they differ after some bytes that both allow.
    """
    transitions = index.get_transitions()
    pairs = [(index.get_initial_state(), 0, b"")]
    seen = {pairs[0][:2]}
    while pairs:
        index_state, state, data = pairs.pop()
        expected = table[state]
        after = {byte: next_state for byte, next_state in transitions.get(index_state, {}).items() if byte < _NUM_BYTES}
        differing = after.keys() ^ expected.after.keys()
        if differing or index.is_final_state(index_state) != expected.is_accepting:
            raise _not_the_same(data, min(differing, default=None))
        for byte, next_state in after.items():
            pair = next_state, expected.after[byte]
            if pair not in seen:
                seen.add(pair)
                pairs.append((*pair, data + bytes((byte,))))


def _not_the_same(data: bytes, byte: int | None) -> GrammarError:
    shown = data.decode(errors="replace")
    what = "would not let the text end" if byte is None else f"leaves out texts that go on with byte 0x{byte:02x}"
    return GrammarError(
        f"outlines-core {what} after {shown!r}: it would produce only a part of what the pattern allows, because it "
        "takes the first alternative that fits and often stops where a text may end. Use the default backend"
    )


class OutlinesGrammar:
    """A table of states and the tokens each allows. Immutable but for a cache of masks."""

    def __init__(self, index: Index, spec: GrammarSpec, vocabulary: GrammarVocabulary) -> None:
        self._index = index
        self._spec = spec
        self._vocabulary = vocabulary
        self._vocab_size = vocabulary.vocab_size
        self._num_transitions = sum(map(len, index.get_transitions().values()))
        self.mask = lru_cache(maxsize=_MAX_CACHED_MASKS)(self._new_mask)

    @property
    def num_bytes(self) -> int:
        # 4 bytes for each token and state, and as much again for the hash table around them.
        return 16 * self._num_transitions + _MAX_CACHED_MASKS * -(-self._vocab_size // 8)

    def new_state(self) -> OutlinesState:
        return OutlinesState(self, [self._index.get_initial_state()])

    def ending(self) -> Ending:
        return self._ending

    @cached_property
    def _ending(self) -> Ending:
        return ending_of(self._spec, self._vocabulary)

    def next_state(self, state: int, token_id: int) -> int | None:
        """The state after a token, None where it is not allowed."""
        if not 0 <= token_id < self._vocab_size:
            return None
        next_state: int | None = self._index.get_next_state(state, token_id)
        return next_state

    def is_final(self, state: int) -> bool:
        return bool(self._index.is_final_state(state))

    def allowed_tokens(self, state: int) -> list[int]:
        """In ascending order."""
        return sorted(token_id for token_id in self._index.get_allowed_tokens(state) if token_id < self._vocab_size)

    def _new_mask(self, state: int) -> NDArray[np.int32]:
        return token_words(self.allowed_tokens(state), self._vocab_size)


class OutlinesState:
    """A place in the table, and those before it."""

    def __init__(self, grammar: OutlinesGrammar, history: list[int]) -> None:
        self._grammar = grammar
        self._history = history

    def fork(self) -> OutlinesState:
        return OutlinesState(self._grammar, self._history.copy())

    def try_accept(self, token_ids: Sequence[int]) -> int:
        for num_accepted, token_id in enumerate(token_ids):
            next_state = self._grammar.next_state(self._history[-1], token_id)
            if next_state is None:
                return num_accepted
            self._history.append(next_state)
        return len(token_ids)

    def allows(self, token_id: int) -> bool:
        return self._grammar.next_state(self._history[-1], token_id) is not None

    def rollback(self, num_tokens: int) -> None:
        assert 0 <= num_tokens < len(self._history), f"{num_tokens} tokens to take back of {len(self._history) - 1}"
        del self._history[len(self._history) - num_tokens :]

    def fill_mask(self, words: NDArray[np.int32]) -> None:
        words[:] = self._grammar.mask(self._history[-1])

    def forced_tokens(self) -> list[int]:
        """The one token allowed, and the one after it, as long as there is no choice."""
        forced: list[int] = []
        state = self._history[-1]
        seen: set[int] = set()
        while state not in seen and not self._grammar.is_final(state):
            seen.add(state)
            token_ids = self._grammar.allowed_tokens(state)
            if len(token_ids) != 1:
                break
            forced.append(token_ids[0])
            next_state = self._grammar.next_state(state, token_ids[0])
            assert next_state is not None, "the table allows the token"
            state = next_state
        return forced

    @property
    def error(self) -> str | None:
        return None

    @property
    def is_accepting(self) -> bool:
        return self._grammar.is_final(self._history[-1])

    @property
    def is_finished(self) -> bool:
        return self.is_accepting and not self._grammar.allowed_tokens(self._history[-1])
