"""CharAutomaton: what is forced, what is ambiguous, whether two patterns mean the same; interegular as the oracle."""

from __future__ import annotations

import re

import interegular
import pytest

from ramet.runtime.grammar.char_automaton import CharAutomaton, char_classes, difference, prefix_pairs
from ramet.runtime.grammar.errors import GrammarBudgetError
from ramet.runtime.grammar.regex import choices_regex, parse_regex
from ramet.runtime.grammar.regex.analysis import num_positions
from ramet.runtime.grammar.regex.char_sets import ALL_CHARS, CharSet
from ramet.runtime.grammar.regex.emit import interegular_text

from .corpus.patterns import CHARACTER_RECORD, PATTERNS, PatternCase


def automaton_of(pattern: str) -> CharAutomaton:
    return CharAutomaton(parse_regex(pattern))


@pytest.mark.parametrize("case", PATTERNS[::2], ids=lambda case: case.name)
def test_members(case: PatternCase) -> None:
    automaton = automaton_of(case.pattern)
    assert not automaton.is_empty
    assert all(automaton.is_member(text) for text in case.members)
    assert not any(automaton.is_member(text) for text in case.non_members)
    for text in case.members:
        stretches = list(automaton.forced_stretches(text))
        assert "".join(stretch for stretch, _ in stretches) == text


SMALL = [case for case in PATTERNS if case.pattern.isascii() and num_positions(parse_regex(case.pattern)) <= 15]


@pytest.mark.parametrize(
    "case", [case for case in SMALL if not re.search(r"\\[wWdDsS]", case.pattern)], ids=lambda case: case.name
)
def test_interegular_reaches_the_same_automaton_on_its_own(case: PatternCase) -> None:
    regex = parse_regex(case.pattern)
    automaton = CharAutomaton(regex)
    theirs = interegular.parse_pattern(interegular_text(regex)).to_fsm()
    assert not theirs.empty()
    pairs = [(theirs.initial, 0)]
    for their_state, state in pairs:
        assert (their_state in theirs.finals) == automaton.is_final(state)
        after = automaton.steps(state)
        for chars in char_classes([regex]):
            symbol = chr(chars.ranges[0][0])
            target = theirs.map.get(their_state, {}).get(theirs.alphabet[symbol])
            if target is None or not theirs.islive(target):
                assert symbol not in after
            elif (target, after[symbol]) not in pairs:
                pairs.append((target, after[symbol]))


def test_interegular_takes_the_automaton() -> None:
    fsm = automaton_of("a|bc*").to_fsm()
    assert fsm.accepts("bcc")
    assert not fsm.accepts("ac")
    assert fsm.equivalent(CharAutomaton(parse_regex("bc*|a")).to_fsm())
    assert automaton_of(r"[^\s\S]").to_fsm().empty()


def test_emptiness() -> None:
    assert automaton_of(r"a[^\s\S]").is_empty
    assert not automaton_of("").is_empty


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("a|ab", "ab?"),
        ("(?:a*b*)*", "[ab]*"),
        (r"\d", r"[\d]"),
        ("(?i)k", "[Kk\u212a]"),
        ("a{2,3}", "aaa?"),
        ("(?:|a)+", "a*"),
    ],
)
def test_patterns_that_mean_the_same(left: str, right: str) -> None:
    assert difference(parse_regex(left), parse_regex(right)) is None


@pytest.mark.parametrize(
    ("left", "right", "text"),
    [("a*", "a+", ""), ("[^a]", "[^b]", "a"), ("abc|abd", "abc", "abd"), (".", r"(?s).", "\n")],
)
def test_a_text_that_tells_patterns_apart(left: str, right: str, text: str) -> None:
    found = difference(parse_regex(left), parse_regex(right))
    assert found is not None
    assert (re.fullmatch(left, found) is None) != (re.fullmatch(right, found) is None)
    assert len(found) == len(text)


def test_forced_text() -> None:
    automaton = automaton_of('\\{"name": "[a-z]{1,3}", "age": [0-9]{2}\\}')
    assert automaton.forced_after("") == '{"name": "'
    assert automaton.forced_after('{"na') == 'me": "'
    assert automaton.forced_after('{"name": "abc') == '", "age": '
    assert automaton.forced_after('{"name": "ab') == ""
    assert automaton.forced_after("x") == ""
    assert list(automaton.forced_stretches('{"name": "ab", "age": 12}')) == [
        ('{"name": "', True),
        ('ab"', False),
        (', "age": ', True),
        ("12", False),
        ("}", True),
    ]
    assert automaton_of("a*").forced_after("") == ""
    assert automaton_of("aaa|b").forced_after("a") == "aa"


def test_the_character_record_of_the_paper_is_mostly_forced() -> None:
    automaton = automaton_of(CHARACTER_RECORD)
    case = next(case for case in PATTERNS if case.pattern == CHARACTER_RECORD)
    stretches = list(automaton.forced_stretches(case.members[0]))
    num_forced = sum(len(text) for text, is_forced in stretches if is_forced)
    assert num_forced > len(case.members[0]) * 0.7


def test_compressed_edges() -> None:
    automaton = automaton_of("abc[xy]d|q")
    edges = automaton.edges(0)
    assert {str(edge.chars) for edge in edges} == {str(CharSet.of_text("a")), str(CharSet.of_text("q"))}
    after_a = next(edge.target for edge in edges if edge.chars == CharSet.of_text("a"))
    assert [edge.chars for edge in automaton.edges(after_a)] == ["bc"]


def test_ambiguity() -> None:
    assert automaton_of("yes|yes please|no").member_that_goes_on() == "yes"
    assert automaton_of("yes|no").member_that_goes_on() is None
    assert automaton_of("a*").member_that_goes_on() == ""
    assert prefix_pairs(["no", "yes please", "yes", "yesterday"]) == [("yes", "yes please")]
    assert prefix_pairs(["a", "ab", "abc", "b"]) == [("a", "ab"), ("ab", "abc")]


def test_character_classes_divide_all_characters() -> None:
    classes = char_classes([parse_regex(r"[a-z]+\w|é.")])
    assert sum(chars.num_chars for chars in classes) == ALL_CHARS.num_chars
    assert CharSet.of_ranges(item for chars in classes for item in chars.ranges) == ALL_CHARS
    assert CharSet.of_text("é") in classes


@pytest.mark.parametrize("pattern", ["(?:a|b)*a(?:a|b){20}", "a{1,10000}"])
def test_too_many_states(pattern: str) -> None:
    with pytest.raises(GrammarBudgetError, match="states"):
        automaton_of(pattern)


def test_many_states_are_compared() -> None:
    assert difference(parse_regex("a{1,600}"), parse_regex("a{0,600}")) == ""
    assert difference(parse_regex("a{0,600}"), parse_regex("a{0,599}")) == "a" * 600


def test_many_choices() -> None:
    texts = [f"choice {idx}" for idx in range(1_000)]
    automaton = CharAutomaton(choices_regex(texts))
    assert automaton.forced_after("") == "choice "
    assert automaton.member_that_goes_on() == "choice 1"
