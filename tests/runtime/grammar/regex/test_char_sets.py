"""CharSet against Python's sets, and the classes of `re` against `re`."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.grammar.regex import parse_regex
from ramet.runtime.grammar.regex.char_sets import ALL_CHARS, CharSet, utf8_len, utf8_prefix_chars
from ramet.runtime.grammar.regex.python_chars import category_chars, class_chars, literal_chars
from ramet.runtime.grammar.regex.syntax import one_of

EVERY_CHAR = "".join(map(chr, range(sys.maxunicode + 1)))
CODES = st.one_of(st.integers(0, 40), st.integers(0xD7F0, 0xE010), st.integers(sys.maxunicode - 20, sys.maxunicode))
RANGES = st.lists(st.tuples(CODES, CODES).map(lambda pair: (min(pair), max(pair))), max_size=5)


def members(chars: CharSet) -> set[int]:
    return {code for first, last in chars.ranges for code in range(first, last + 1)}


def matched_chars(source: str, flags: int, text: str = EVERY_CHAR) -> CharSet:
    """The characters of the beginning of Unicode that a pattern for one character matches."""
    runs = re.finditer(f"(?:{source})+", text, flags)
    return CharSet.of_ranges((run.start(), run.end() - 1) for run in runs)


def expected_members(ranges: list[tuple[int, int]]) -> set[int]:
    return members(ALL_CHARS) & {code for first, last in ranges for code in range(first, last + 1)}


def code_ranges(codes: list[int]) -> CharSet:
    return CharSet.of_ranges((code, code) for code in codes)


@given(st.lists(st.integers(0, 60)), st.lists(st.integers(0, 60)))
def test_algebra_is_that_of_sets(left: list[int], right: list[int]) -> None:
    a, b = code_ranges(left), code_ranges(right)
    assert members(a | b) == {*left, *right}
    assert members(a & b) == set(left) & set(right)
    assert members(a - b) == set(left) - set(right)
    assert all((chr(code) in a) == (code in left) for code in range(61))
    assert a.num_chars == len(set(left))


@given(RANGES)
def test_ranges_are_sorted_disjoint_and_apart_and_have_no_surrogate(ranges: list[tuple[int, int]]) -> None:
    chars = CharSet.of_ranges(ranges)
    for (_, last), (first, _) in zip(chars.ranges, chars.ranges[1:], strict=False):
        assert last + 1 < first
    assert chars.complement().complement() == chars
    assert not chars & chars.complement()
    assert chars | chars.complement() == ALL_CHARS


def test_a_range_around_the_surrogates_is_cut() -> None:
    assert CharSet.of_ranges([(0xD7FF, 0xE000)]).ranges == ((0xD7FF, 0xD7FF), (0xE000, 0xE000))
    assert not CharSet.of_ranges([(0xD800, 0xDFFF)])


@pytest.mark.parametrize(
    "char", ["a", "\x7f", "\x80", "é", "\u07ff", "\u0800", "日", "\uffff", "\U00010000", "😀", "\U0010ffff"]
)
def test_utf8_prefix_chars(char: str) -> None:
    data = char.encode()
    assert utf8_len(char) == len(data)
    for num_bytes in range(1, len(data)):
        chars = utf8_prefix_chars(data[:num_bytes])
        assert char in chars
        for first, last in chars.ranges:
            for code in {first, last, (first + last) // 2}:
                assert chr(code).encode().startswith(data[:num_bytes])
        for first, last in chars.complement().ranges:
            for code in {first, last, (first + last) // 2}:
                assert not chr(code).encode().startswith(data[:num_bytes])


@pytest.mark.parametrize(
    "data", [b"\x80", b"\xc0", b"\xc1", b"\xf5", b"\xff", b"\xe0\x80", b"\xed\xa0", b"\xf4\x90", b"\xc3a", b"a"]
)
def test_no_character_begins_with_bytes_that_are_not_utf8(data: bytes) -> None:
    assert not utf8_prefix_chars(data)


@pytest.mark.parametrize("is_ascii", [False, True])
@pytest.mark.parametrize("escape", [r"\d", r"\D", r"\s", r"\S", r"\w", r"\W"])
def test_categories_are_those_of_re(escape: str, is_ascii: bool) -> None:
    assert category_chars(escape, is_ascii=is_ascii) == matched_chars(escape, re.ASCII if is_ascii else 0)


@pytest.mark.parametrize("is_ascii", [False, True])
@pytest.mark.parametrize(
    "source",
    [
        "[a-z]",
        "[^k]",
        "[K-S]",
        r"[\W]",
        r"[^\w]",
        "[ß-ö]",
        "[\u0100-\U0010ffff]",
        "[\U00010400-\U00010410x]",
        "[\u212a]",
        "[\U0001e900ſ]",
        "[İı]",
        r"[\d\u0345µ]",
        "[\ufb05]",
        "[\0-\U0010ffff]",
    ],
)
def test_classes_that_ignore_case_are_those_of_re(source: str, is_ascii: bool) -> None:
    expected = matched_chars(source, re.IGNORECASE | (re.ASCII if is_ascii else 0))
    assert parse_regex(f"(?{'a' if is_ascii else ''}i){source}") == one_of(expected)


@pytest.mark.slow
def test_every_literal_that_ignores_case_is_that_of_re() -> None:
    text = EVERY_CHAR[:0x1F000]
    for code, char in enumerate(text):
        has_case = len({char, *char.lower(), *char.upper(), *char.title()}) > 1
        if has_case or code % 97 == 0:
            expected = matched_chars(f"\\U{code:08x}", re.IGNORECASE, text)
            assert literal_chars(code, is_ascii=False) == expected


def test_characters_beyond_the_first_planes_have_neither_case_nor_class() -> None:
    assert not [char for char in EVERY_CHAR[0x20000:] if char.lower() != char or char.upper() != char]
    assert not re.search(r"[\w\s]", EVERY_CHAR[0x40000:])


def test_a_class_without_case_is_not_asked_about() -> None:
    assert class_chars(((0x30, 0x39),), is_ascii=False, ignores_case=True) == CharSet(((0x30, 0x39),))
