"""The outlines backend: what it takes, what it refuses, and that its masks are the pattern's."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest

from ramet.grammar_spec import GrammarSpec
from ramet.runtime.grammar.errors import GrammarBudgetError, GrammarError, GrammarVocabularyError, UnsupportedRegexError
from ramet.runtime.grammar.outlines_backend import OutlinesBackend, OutlinesState
from ramet.runtime.grammar.regex import parse_regex
from ramet.runtime.grammar.regex.analysis import shortest_member
from ramet.runtime.grammar.regex_automaton import RegexAutomaton
from ramet.runtime.grammar.vocabulary import GrammarVocabulary

from .corpus.patterns import PATTERNS

LONGER_TOKENS = ["ab", "abc", "20", "26-", "-1", " the", "日", "é", '": "', "\n\n", "yes", " please", "{\n"]


class SmallTokenizer:
    """The 256 bytes (less those in `missing`), some longer tokens, and a special token as the last one."""

    def __init__(self, missing: bytes = b"") -> None:
        single = [bytes((byte,)) for byte in range(256) if byte not in missing]
        self.spellings = [*single, *(text.encode() for text in LONGER_TOKENS), b"<end>"]

    def is_special(self, token_id: int) -> bool:
        return token_id >= len(self.spellings) - 1

    def token_bytes(self, token_id: int) -> bytes:
        return self.spellings[token_id]


def vocabulary_of(missing: bytes = b"") -> GrammarVocabulary:
    tokenizer = SmallTokenizer(missing)
    return GrammarVocabulary(tokenizer, len(tokenizer.spellings) + 37)


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return vocabulary_of()


@pytest.fixture(scope="module")
def backend(vocabulary: GrammarVocabulary) -> OutlinesBackend:
    return OutlinesBackend(vocabulary)


def state_of(backend: OutlinesBackend, vocabulary: GrammarVocabulary, pattern: str, prefix: str = "") -> OutlinesState:
    return backend.compile(GrammarSpec("regex", pattern, prefix=prefix)).new_state()


def allowed_in(state: OutlinesState, vocabulary: GrammarVocabulary) -> set[int]:
    words = np.full(vocabulary.num_words, -1, dtype=np.int32)
    state.fill_mask(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


SOME = [case for case in PATTERNS if len(case.pattern) < 60 and not re.search(r"\\[wWdDsS]", case.pattern)][::2]
TAKEN = [
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "(January|February|March|April|May|June|July|August)",
    "[éa日]{2}😀",
    r"(?a)\d\d:\d\d",
    "#(?:[0-9a-f]{3})",
    "a+b*",
    r'\{"a": (?:true|false), "b": "[^"\\\n]{2}"\}',
    "(?:positive|negative|neutral)",
    "[^\n]{1,20}\n",
]


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.name)
def test_masks_are_those_of_the_pattern_or_it_is_refused(case, backend, vocabulary) -> None:
    try:
        state = state_of(backend, vocabulary, case.pattern)
    except (GrammarError, GrammarBudgetError):
        return
    automaton = RegexAutomaton(parse_regex(case.pattern))
    random = Random(case.name)
    beginning = automaton.start()
    for _ in range(20):
        allowed = allowed_in(state, vocabulary)
        after = {idx: automaton.advance(beginning, text) for idx, text in enumerate(vocabulary.token_bytes) if text}
        assert allowed == {idx for idx, longer in after.items() if longer is not None}
        assert state.is_accepting == automaton.is_accepting(beginning)
        assert state.is_finished == (not allowed)
        if not allowed:
            break
        token_id = random.choice(sorted(allowed))
        assert state.try_accept([token_id]) == 1
        beginning = after[token_id]


@pytest.mark.parametrize("pattern", TAKEN)
def test_patterns_that_stop_where_they_must_are_taken(pattern, backend, vocabulary) -> None:
    state = state_of(backend, vocabulary, pattern)
    text = shortest_member(parse_regex(pattern))
    assert state.try_accept(list(text.encode())) == len(text.encode())
    assert state.is_accepting


@pytest.mark.parametrize(
    "pattern",
    [
        "a|ab",
        "yes|yes please|no",
        "(a|ab)(c|bcd)?",
        "a*(ab)?",
        r"[a-z.]+\.[a-z]{2,}",
        "(?:|a)",
    ],
)
def test_a_pattern_of_which_only_a_part_would_be_produced_is_refused(pattern, backend, vocabulary) -> None:
    with pytest.raises(GrammarError, match="only a part"):
        state_of(backend, vocabulary, pattern)


def test_a_loop_that_may_end_anywhere_loses_characters_of_several_bytes_and_is_refused(backend, vocabulary) -> None:
    with pytest.raises(GrammarError, match="byte 0xc3 after ''"):
        state_of(backend, vocabulary, "[éa日]*")


def test_choices_and_a_prefix(backend, vocabulary) -> None:
    spec = GrammarSpec("choices", ("a.*", "ab"), prefix="x")
    state = backend.compile(spec).new_state()
    assert state.forced_tokens() == [ord("x")]  # then "a" or "ab"
    assert state.try_accept([ord("x"), ord("a"), ord("."), ord("*"), ord("*")]) == 4
    assert state.is_finished
    with pytest.raises(GrammarError, match="only a part"):
        backend.compile(GrammarSpec("choices", ("yes", "yes please")))


def test_fork_rollback_and_refused_tokens(backend, vocabulary) -> None:
    state = state_of(backend, vocabulary, "[ab]{1,200}c")
    tokens = [ord("a"), ord("b")] * 100
    assert state.try_accept([*tokens, ord("a")]) == 200
    fork = state.fork()
    fork.rollback(200)
    assert not fork.is_accepting
    assert fork.try_accept([ord("c")]) == 0
    assert fork.try_accept([ord("b"), -1]) == 1
    assert fork.try_accept([10_000]) == 0
    assert state.try_accept([ord("c")]) == 1
    assert state.is_accepting
    assert state.is_finished
    state.rollback(1)
    assert state.forced_tokens() == [ord("c")]
    assert re.fullmatch("[ab]{200}", bytes(tokens).decode())


@pytest.mark.parametrize("kind", ["json_schema", "ebnf"])
def test_other_kinds_are_refused(kind, backend, vocabulary) -> None:
    with pytest.raises(GrammarError, match="takes a regex or choices"):
        backend.compile(GrammarSpec(kind, "{}"))


def test_what_cannot_be_produced_is_refused(backend, vocabulary) -> None:
    with pytest.raises(GrammarError, match="no text at all"):
        state_of(backend, vocabulary, r"a[^\s\S]")
    with pytest.raises(UnsupportedRegexError):
        state_of(backend, vocabulary, r"(?=a)b")
    with pytest.raises(GrammarVocabularyError):
        OutlinesBackend(vocabulary_of(missing=b"q")).compile(GrammarSpec("regex", "aq"))


@pytest.mark.parametrize(
    "pattern", ["a{1,10000}", "[^\n]{1,4000}", "(a|b)*a(a|b){20}", "((a?){100}){100}", r"\w{1,4000}"]
)
def test_large_tables_are_refused(pattern, backend, vocabulary) -> None:
    with pytest.raises(GrammarBudgetError, match="outlines backend"):
        state_of(backend, vocabulary, pattern)
