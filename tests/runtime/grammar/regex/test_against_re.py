"""The front end against re.fullmatch: on random patterns and texts they agree, or the pattern is refused."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.grammar.errors import UnsupportedRegexError
from ramet.runtime.grammar.regex import parse_regex
from ramet.runtime.grammar.regex.analysis import is_empty, shortest_member
from ramet.runtime.grammar.regex_automaton import RegexAutomaton

from ..corpus.patterns import PATTERNS, PatternCase
from .random_members import random_member

CHARS = "abAB1_ -\n\u00e9\u00c9\u017f\u212akKs\u0660\u2003日😀"
_CHAR_ATOMS = ["a", "b", "A", "K", "s", "1", "_", " ", "é", "日", "😀", ".", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S"]
_CLASS_ATOMS = ["[ab]", "[^a]", "[a-k]", r"[^\d_]", r"[\w-]", "[]^]", "[\u0100-\U0010ffff]", "[^\u00e9]", "[ſ]", r"\n"]
_ATOMS = st.sampled_from([*_CHAR_ATOMS, *_CLASS_ATOMS, "ab", "", "^", "$"])
_QUANTIFIERS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,}", "{,3}?"])
_GROUPS = st.sampled_from(["(", "(?:", "(?i:", "(?s:", "(?a:", "(?-i:", "(?m:"])


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    grouped = st.builds("{}{})".format, _GROUPS, inner)
    return st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda branches: f"(?:{'|'.join(branches)})"),
        st.builds("{}{}".format, grouped, _QUANTIFIERS),
        grouped,
    )


BODIES = st.recursive(_ATOMS, _compound, max_leaves=8)
SOURCES = st.builds("{}{}".format, st.sampled_from(["", "", "(?i)", "(?a)", "(?s)", "(?ai)", "(?m)"]), BODIES)
# Python's matcher backtracks: on nested loops its time is exponential in the length of the text.
_MAX_TEXT_LEN = 6
TEXTS = st.lists(st.text(CHARS, max_size=4), min_size=1, max_size=8)


def check_agreement(source: str, texts: list[str], seed: int) -> None:
    try:
        expected = re.compile(source)
        regex = parse_regex(source)
    except (re.error, UnsupportedRegexError):
        return
    automaton = RegexAutomaton(regex)
    if not is_empty(regex):
        random = Random(seed)
        members = [random_member(regex, random) for _ in range(4)]
        members.append(shortest_member(regex) or "")
        members = [member for member in members if len(member) <= _MAX_TEXT_LEN]
        for member in members:
            assert expected.fullmatch(member), (source, member)
        texts = [*texts, *members, *(member[:-1] for member in members), *(member + "a" for member in members)]
    for text in texts:
        assert automaton.is_member(text) == (expected.fullmatch(text) is not None), (source, text)


@given(SOURCES, TEXTS, st.integers(0, 1 << 30))
@settings(max_examples=500, deadline=None)
def test_random_patterns(source: str, texts: list[str], seed: int) -> None:
    check_agreement(source, texts, seed)


@pytest.mark.slow
@given(SOURCES, TEXTS, st.integers(0, 1 << 30))
@settings(max_examples=20_000, deadline=None)
def test_many_random_patterns(source: str, texts: list[str], seed: int) -> None:
    check_agreement(source, texts, seed)


@given(
    st.lists(st.sampled_from(["a", "b", "", "a?", "b*", "(?:a|)", "(?:|ab)+", "(?:a*b?){2}", "|"]), max_size=5), TEXTS
)
@settings(max_examples=300, deadline=None)
def test_loops_over_parts_that_may_be_empty(parts: list[str], texts: list[str]) -> None:
    check_agreement(f"(?:{''.join(parts)}){{1,3}}b", texts, 0)
    check_agreement(f"(?:{''.join(parts)})*", texts, 1)


@pytest.mark.parametrize("case", PATTERNS, ids=lambda case: case.name)
def test_corpus(case: PatternCase) -> None:
    regex = parse_regex(case.pattern)
    automaton = RegexAutomaton(regex)
    assert case.members
    for text in case.members:
        assert re.fullmatch(case.pattern, text)
        assert automaton.is_member(text)
    for text in case.non_members:
        assert not re.fullmatch(case.pattern, text)
        assert not automaton.is_member(text)
    random = Random(case.name)
    for _ in range(10):
        assert re.fullmatch(case.pattern, random_member(regex, random))


def test_the_corpus_is_large_and_its_names_differ() -> None:
    assert len(PATTERNS) >= 150
    assert len({case.name for case in PATTERNS}) == len(PATTERNS)
