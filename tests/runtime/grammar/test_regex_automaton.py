"""RegexAutomaton: beginnings of members, byte by byte, and the shortest text that ends one."""

from __future__ import annotations

import re
from itertools import product
from random import Random

import pytest

from ramet.runtime.grammar.regex import choices_regex, parse_regex
from ramet.runtime.grammar.regex.analysis import shortest_member, shortest_num_bytes
from ramet.runtime.grammar.regex.char_sets import ALL_CHARS, CharSet
from ramet.runtime.grammar.regex_automaton import RegexAutomaton

from .corpus.patterns import PATTERNS, PatternCase
from .regex.random_members import random_member


def automaton_of(pattern: str, spellable: CharSet | None = None) -> RegexAutomaton:
    return RegexAutomaton(parse_regex(pattern), spellable)


def ending_of(automaton: RegexAutomaton, text: bytes) -> bytes | None:
    beginning = automaton.beginning_of(text)
    assert beginning is not None
    return automaton.shortest_ending(beginning)


@pytest.mark.parametrize("case", PATTERNS, ids=lambda case: case.name)
def test_every_beginning_of_a_member_can_be_ended(case: PatternCase) -> None:
    regex = parse_regex(case.pattern)
    automaton = RegexAutomaton(regex)
    random = Random(case.name)
    for text in [*case.members, random_member(regex, random)]:
        data = text.encode()
        beginning = automaton.start()
        for num_bytes in range(len(data) + 1):
            if num_bytes:
                assert beginning is not None
                beginning = automaton.advance(beginning, data[num_bytes - 1 : num_bytes])
            assert beginning is not None
            ending = automaton.shortest_ending(beginning)
            assert ending is not None
            assert len(ending) <= len(data) - num_bytes
            assert automaton.is_member((data[:num_bytes] + ending).decode())
            assert automaton.is_accepting(beginning) == (ending == b"")


@pytest.mark.parametrize("case", PATTERNS[::4], ids=lambda case: case.name)
def test_next_bytes_are_those_that_can_be_advanced_over(case: PatternCase) -> None:
    automaton = automaton_of(case.pattern)
    beginning = automaton.start()
    for byte in case.members[0].encode()[:20]:
        assert beginning is not None
        advanced = [other for other in range(256) if automaton.advance(beginning, bytes([other])) is not None]
        assert automaton.next_bytes(beginning) == advanced
        beginning = automaton.advance(beginning, bytes([byte]))


SMALL = [
    "a|ab",
    "(?:ab|c){2}a",
    "a*b?c",
    "(?:a|bc)*",
    "c(?:ab?){1,2}",
    "(?:a|b)*a(?:a|b)",
    "",
    "(?:ab)+|b",
    "a{2,3}",
    "[ab]c|a[^a]b",
]


@pytest.mark.parametrize("pattern", SMALL)
def test_viability_and_shortest_endings_against_all_texts(pattern: str) -> None:
    texts = ["".join(chars) for num_chars in range(7) for chars in product("abc", repeat=num_chars)]
    members = [text for text in texts if re.fullmatch(pattern, text)]
    automaton = automaton_of(pattern)
    for text in texts[: 3**4]:
        endings = [member[len(text) :] for member in members if member.startswith(text)]
        assert automaton.is_viable(text.encode()) == bool(endings)
        if endings:
            assert len(ending_of(automaton, text.encode()) or b"") == min(map(len, endings))


def test_a_text_may_end_inside_a_character() -> None:
    automaton = automaton_of("[é日😀]x")
    assert ending_of(automaton, "日".encode()[:1]) == "日x".encode()[1:]
    assert ending_of(automaton, "😀".encode()[:3]) == "😀x".encode()[3:]
    assert not automaton.is_viable("ê".encode())
    assert automaton.is_viable("é".encode()[:1])
    assert not automaton.is_viable(b"\xc4")
    assert not automaton.is_viable(b"\xff")
    assert not automaton.is_viable("日".encode()[:1] + b"x")
    beginning = automaton.beginning_of("日".encode()[:2])
    assert beginning is not None
    assert not automaton.is_accepting(beginning)
    assert automaton.can_go_on(beginning)
    assert automaton.next_chars(beginning) == CharSet.of_text("日")


def test_only_characters_that_can_be_spelled_end_a_text() -> None:
    letters = CharSet.of_text("bcx")
    assert ending_of(automaton_of("(?:a|bc)x", letters), b"") == b"bcx"
    assert ending_of(automaton_of("[ab]{2}x", letters), b"a") == b"bx"
    assert ending_of(automaton_of("xa", letters), b"x") is None
    assert ending_of(automaton_of("xa*", letters), b"x") == b""
    assert ending_of(automaton_of("xbcabx", letters), b"xbca") == b"bx"
    assert ending_of(automaton_of("xbcabx", letters), b"xbc") is None
    assert ending_of(automaton_of("é", letters), "é".encode()[:1]) is None
    regex = parse_regex("\x04|x\x06?|[\x04é]")
    assert shortest_member(regex, ALL_CHARS - CharSet.of_text("\x04\x06")) == "x"
    assert shortest_member(parse_regex("a\x04"), letters) is None
    assert shortest_num_bytes(parse_regex("日{3}|abcdefgh")) == 8


def test_nothing_begins_a_member_of_an_empty_regex() -> None:
    automaton = automaton_of(r"[^\s\S]")
    assert automaton.start() is None
    assert not automaton.is_viable(b"")
    assert not automaton.is_member("")


def test_the_shortest_text_prefers_letters_and_digits() -> None:
    assert shortest_member(parse_regex(r"[^\n]{1,200}")) == "0"
    assert shortest_member(parse_regex(r"\w\s\S")) == "0 0"
    assert shortest_member(parse_regex(r"[\x00-a]é|[éa]")) == "a"


def test_large_counts_and_ambiguous_loops_cost_what_a_text_reaches() -> None:
    automaton = automaton_of(r"(?:[ab]*a[ab]{0,100}){1,100}c{5000}")
    beginning = automaton.beginning_of(b"abab" * 10)
    assert beginning is not None
    assert automaton.shortest_ending(beginning) == b"c" * 5000
    nested = automaton_of("((a?){100}){100}")
    assert ending_of(nested, b"a" * 20) == b""


def test_many_choices() -> None:
    texts = [f"{idx}/{idx * idx}" for idx in range(5_000)]
    automaton = RegexAutomaton(choices_regex(texts))
    assert all(automaton.is_member(text) for text in texts[::500])
    assert ending_of(automaton, b"77/") == b"5929"
    assert not automaton.is_viable(b"77/6")
