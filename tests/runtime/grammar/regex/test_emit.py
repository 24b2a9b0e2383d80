"""The three engines understand what is emitted for them as re understands the pattern."""

from __future__ import annotations

import re
from random import Random

import interegular
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from outlines_core import Index, Vocabulary

from ramet.runtime.grammar.regex import Regex, parse_regex
from ramet.runtime.grammar.regex.analysis import num_positions
from ramet.runtime.grammar.regex.char_sets import CharSet
from ramet.runtime.grammar.regex.emit import interegular_text, rust_text
from ramet.runtime.grammar.regex.syntax import EMPTY, Literal, alternation, concat, one_of, repeat
from ramet.runtime.grammar.regex_automaton import RegexAutomaton

from ..corpus.patterns import PATTERNS, PatternCase
from .random_members import random_member

END_ID = 256


class ByteTokens:
    """A tokenizer with one token a byte, for llguidance."""

    eos_token_id = END_ID
    bos_token_id = None
    special_token_ids = (END_ID,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(ByteTokens()), n_vocab=END_ID + 1)


def llguidance_accepts(tokenizer: LLTokenizer, pattern: str, texts: list[str]) -> list[bool]:
    accepted = []
    for text in texts:
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_regex(pattern), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        data = list(text.encode())
        accepted.append(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())
    return accepted


def outlines_accepts(pattern: str, texts: list[str]) -> list[bool]:
    index = Index(pattern, Vocabulary(END_ID, {bytes([byte]): [byte] for byte in range(256)}))
    accepted = []
    for text in texts:
        state: int | None = index.get_initial_state()
        for byte in text.encode():
            state = None if state is None else index.get_next_state(state, byte)
        accepted.append(state is not None and index.is_final_state(state))
    return accepted


def interegular_accepts(pattern: str, texts: list[str]) -> list[bool]:
    fsm = interegular.parse_pattern(pattern).to_fsm()
    return [fsm.accepts(text) for text in texts]


def texts_of(regex: Regex, case: PatternCase) -> list[str]:
    random = Random(case.name)
    members = [random_member(regex, random) for _ in range(3)]
    return [
        *case.members,
        *case.non_members,
        *members,
        *(text[:-1] for text in members),
        *(f"{text}a" for text in members),
    ]


@pytest.mark.parametrize("case", PATTERNS, ids=lambda case: case.name)
def test_llguidance_agrees_on_the_corpus(case: PatternCase, tokenizer: LLTokenizer) -> None:
    regex = parse_regex(case.pattern)
    texts = texts_of(regex, case)
    expected = [re.fullmatch(case.pattern, text) is not None for text in texts]
    assert llguidance_accepts(tokenizer, rust_text(regex), texts) == expected


# Unicode's classes take interegular minutes.
SMALL_CASES = [
    case
    for case in PATTERNS
    if num_positions(parse_regex(case.pattern)) <= 20 and len(interegular_text(parse_regex(case.pattern))) <= 500
]


@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: case.name)
def test_interegular_agrees_on_the_corpus(case: PatternCase) -> None:
    regex = parse_regex(case.pattern)
    texts = texts_of(regex, case)
    expected = [re.fullmatch(case.pattern, text) is not None for text in texts]
    assert interegular_accepts(interegular_text(regex), texts) == expected


@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: case.name)
def test_outlines_accepts_members_only(case: PatternCase) -> None:
    regex = parse_regex(case.pattern)
    texts = texts_of(regex, case)
    for text, is_accepted in zip(texts, outlines_accepts(rust_text(regex), texts), strict=True):
        assert not is_accepted or re.fullmatch(case.pattern, text), text


SPECIAL = "]^-\\[&~|.$*+?(){}#/\"' \n\r\t\0\x7fa_0é\u2028日\uffff😀"


@pytest.mark.parametrize("char", SPECIAL)
def test_every_special_character_alone_and_in_a_class(char: str, tokenizer: LLTokenizer) -> None:
    texts = [char, "a", "b", "\\", "]", "\n", "é", ""]
    for regex, expected in [
        (Literal(char), [text == char for text in texts]),
        (one_of(CharSet.of_text(char + "a")), [text in (char, "a") for text in texts]),
        (one_of(CharSet.of_text(char + "a").complement()), [text not in (char, "a", "") for text in texts]),
    ]:
        assert llguidance_accepts(tokenizer, rust_text(regex), texts) == expected
        assert outlines_accepts(rust_text(regex), texts) == expected
        assert interegular_accepts(interegular_text(regex), texts) == expected


def test_emitted_text_for_rust_is_ascii_without_quotes_slashes_or_blanks() -> None:
    for case in PATTERNS:
        assert re.fullmatch(r"[A-Za-z0-9_\\{}()?:|\[\]*+,-]*", rust_text(parse_regex(case.pattern)))


LEAVES = st.one_of(
    st.text("ab]-", max_size=3).map(Literal),
    st.text("ab]^-\\\n", min_size=1, max_size=4).map(lambda text: one_of(CharSet.of_text(text))),
    st.text("a\n", min_size=1).map(lambda text: one_of(CharSet.of_text(text).complement())),
    st.just(EMPTY),
)
COUNTS = st.sampled_from([(0, None), (1, None), (0, 1), (2, 2), (0, 2), (1, 3), (2, None)])
REGEXES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(concat),
        st.lists(inner, min_size=1, max_size=3).map(alternation),
        st.builds(lambda body, counts: repeat(body, *counts), inner, COUNTS),
    ),
    max_leaves=6,
)


@given(REGEXES, st.lists(st.text("ab]-\n", max_size=5), max_size=6), st.integers(0, 1 << 30))
@settings(max_examples=100, deadline=None)
def test_engines_agree_with_the_automaton(tokenizer: LLTokenizer, regex: Regex, texts: list[str], seed: int) -> None:
    random = Random(seed)
    texts = [*texts, *(random_member(regex, random) for _ in range(3))]
    automaton = RegexAutomaton(regex)
    expected = [automaton.is_member(text) for text in texts]
    assert llguidance_accepts(tokenizer, rust_text(regex), texts) == expected
    assert interegular_accepts(interegular_text(regex), texts) == expected
    for text, is_accepted in zip(texts, outlines_accepts(rust_text(regex), texts), strict=True):
        assert automaton.is_member(text) or not is_accepted, text
