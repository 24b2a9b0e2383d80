"""What the front end accepts, what it refuses and where it points."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.grammar.errors import GrammarError, UnsupportedRegexError
from ramet.runtime.grammar.regex import choices_regex, parse_regex
from ramet.runtime.grammar.regex.char_sets import CharSet
from ramet.runtime.grammar.regex.parser import MAX_BRANCHES, MAX_NESTING, MAX_PATTERN_CHARS
from ramet.runtime.grammar.regex.syntax import EMPTY, NOTHING, Alternation, Literal, OneOf, Repeat

REFUSED = [
    (r"ab(?=c)", 2, "look-ahead"),
    (r"a(?!b)", 1, "look-ahead"),
    (r"(?<=a)b", 0, "look-behind"),
    (r"x(?:a|(?<!b)c)", 6, "look-behind"),
    (r"(a)\1", 3, "back-reference"),
    (r"(?P<q>['\"]).*(?P=q)", 14, "back-reference"),
    (r"(a)(b)[\1]\2", 10, "back-reference"),
    (r"(a)?(?(1)b|c)", 4, "conditional"),
    (r"\bword\b", 0, "word boundary"),
    (r"[\b]\B", 4, "word boundary"),
    (r"\\\b", 2, "word boundary"),
    (r"(?>a+)b", 0, "atomic"),
    (r"a++", 2, "possessive"),
    (r"[+]?+", 4, "possessive"),
    (r"\+*+", 3, "possessive"),
    (r"(?:ab){2,3}+", 11, "possessive"),
    (r"\N{PLUS SIGN}++", 14, "possessive"),
    (r"a^b", 1, "anchor at the start"),
    (r"a$b", 1, "anchor at the end"),
    (r"[$]\$$b", 5, "anchor at the end"),
    (r"a$\n?", 1, "anchor at the end"),
    (r"(?:^a)+", 3, "anchor at the start"),
    (r"(?:b$)*", 4, "anchor at the end"),
    (r"(?:^a|x^b)", 7, "anchor at the start"),
    (r"z(?:^a|^b)", 4, "anchor at the start"),
    (r"\A\Aa\A", 5, "anchor at the start"),
    (r"\Za", 0, "anchor at the end"),
    (r"(?m)a$\nb$", 5, r"\(\?m\)"),
    ("(?x) a # ^ $ \n $ b", 15, "anchor at the end"),
    (r"(?x:a [#] ) # ^b", 14, "anchor at the start"),
    (r"(?#^)a^", 6, "anchor at the start"),
    (r"a\ud800", 1, "surrogate"),
    (r"\U0000DFFF", 0, "surrogate"),
    ("ab\ud800", 2, "surrogate"),
    (r"a{1,100000}", 1, "repeats multiply"),
    (r"((a{100}){100}){100}", 3, "repeats multiply"),
    (r"(a{,20000})?", 2, "repeats multiply"),
    (r"a(b", 1, "not valid: missing"),
    (r"a)b", 1, "not valid: unbalanced"),
    (r"[b-a]", 1, "not valid: bad character range"),
    (r"a**", 2, "not valid: multiple repeat"),
    (r"*a", 0, "not valid: nothing to repeat"),
    (r"\q", 0, "not valid: bad escape"),
    (r"a(?i)b", 1, "not valid: global flags"),
    (r"\N{NO SUCH CHARACTER}", 0, "not valid: undefined character name"),
    (r"a{99999999999}", None, "not valid"),
    (r"(?L)a", None, "not valid"),
]


@pytest.mark.parametrize(("pattern", "position", "reason"), REFUSED, ids=[repr(case[0]) for case in REFUSED])
def test_refusals_name_the_position(pattern: str, position: int | None, reason: str) -> None:
    with pytest.raises(UnsupportedRegexError, match=reason) as caught:
        parse_regex(pattern)
    assert caught.value.pattern == pattern
    if position is not None:
        assert caught.value.position == position


@pytest.mark.parametrize("pattern", [b"abc", None, 3, re.compile("a")])
def test_only_strings_are_patterns(pattern: object) -> None:
    with pytest.raises(GrammarError, match="regex must be a str"):
        parse_regex(pattern)  # type: ignore[arg-type]


HOSTILE = {
    "deep groups": "(" * 5000 + ")" * 5000,
    "deep open groups": "(" * 60_000,
    "deep look-aheads": "(?=" * 5000,
    "too long": "a" * (MAX_PATTERN_CHARS + 1),
    "many anchors": "a" + "^" * 60_000,
    "nested counts": "(" * 50 + "a" + "{2})" * 50,
    "huge count": "a{0,65000}",
    "wide repeats": "(?:" + "[ab]" * 5_000 + "){5000}",
    "many Unicode classes": "".join(rf"[\w{chr(0x4E00 + idx)}]" for idx in range(9_000)),
    "many classes that ignore case": "(?i)" + "".join(f"[a{chr(0x4E00 + idx)}]" for idx in range(9_000)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_patterns_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedRegexError) as caught:
        parse_regex(HOSTILE[name])
    assert len(str(caught.value)) < 500


def test_large_patterns_that_are_fine() -> None:
    assert parse_regex("a" * MAX_PATTERN_CHARS) == Literal("a" * MAX_PATTERN_CHARS)
    assert parse_regex("(" * MAX_NESTING + "a" + ")" * MAX_NESTING) == Literal("a")
    words = [f"{idx:05d}" for idx in range(10_000)]
    regex = parse_regex("x" + "|".join(words))
    assert isinstance(regex, Alternation)
    assert len(regex.branches) == len(words)
    assert parse_regex("a{1,10000}") == Repeat(Literal("a"), 1, 10_000)
    assert parse_regex("(a*)*") == Repeat(Literal("a"), 0, None)


def test_a_pattern_is_read_in_a_deep_call_stack_or_refused() -> None:
    pattern = "(" * 90 + "a" + ")" * 90

    def deeper(num_calls: int) -> object:
        return parse_regex(pattern) if num_calls == 0 else deeper(num_calls - 1)

    with pytest.raises(UnsupportedRegexError, match="nested too deeply"):
        deeper(850)


def test_nothing_matches_an_empty_class() -> None:
    assert parse_regex(r"[^\s\S]") == NOTHING
    assert parse_regex(r"a[^\d\D]b") == NOTHING
    assert parse_regex(r"a(?:[^\w\W]|b)") == Literal("ab")
    assert parse_regex(r"[\ud800-\udfff]") == NOTHING
    assert parse_regex(r"(?:[^\s\S])*") == EMPTY


def test_classes_are_code_points_without_surrogates() -> None:
    assert parse_regex(r"[\ud7ff-\ue000]") == OneOf(CharSet(((0xD7FF, 0xD7FF), (0xE000, 0xE000))))


def test_choices() -> None:
    assert choices_regex(["a", "ab"]) == Alternation((Literal("a"), Literal("ab")))
    assert choices_regex(["a.*"]) == Literal("a.*")
    with pytest.raises(GrammarError, match="lone surrogate at position 1"):
        choices_regex(["b", "a\udc00"])
    with pytest.raises(GrammarError, match="too many"):
        choices_regex([str(idx) for idx in range(MAX_BRANCHES + 1)])


PIECES = st.sampled_from(
    [
        *"ab^$()[]{}|?*+.,-\\#: \n",
        r"\A",
        r"\Z",
        r"\b",
        r"\1",
        "(?:",
        "(?i:",
        "(?x)",
        "(?=",
        "{1,2}",
        "[^",
        "(?P<n>",
        r"\d",
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join))
@settings(max_examples=400)
def test_any_text_is_read_or_refused_with_a_position_inside_it(pattern: str) -> None:
    refusal = refusal_of(pattern)
    if refusal is None:
        re.compile(pattern)
    elif "not valid" in refusal.reason or "warns" in refusal.reason:
        assert refusal.position is None or 0 <= refusal.position <= len(pattern)
    else:
        assert refusal.position in range(len(pattern))
        re.compile(pattern)


def refusal_of(pattern: str) -> UnsupportedRegexError | None:
    try:
        parse_regex(pattern)
    except UnsupportedRegexError as error:
        return error
    return None
