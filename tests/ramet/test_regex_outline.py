"""RegexOutline agrees with `re` about the empty text, and takes no time where `re` takes hours."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.eval import Filter, InvalidTaskError
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.primitives import gen
from ramet.frontend.program import Program
from ramet.frontend.state import ProgramState
from ramet.regex_outline import MAX_REGEX_CHARS, RegexSyntaxError, outline
from ramet.sampling_params import InvalidSamplingParamsError, SamplingParams

ENDLESS = "(?:(?:a?){9999}){9999}"

PATTERNS = st.recursive(
    st.sampled_from(["a", "[bc]", "[^d]", ".", r"\d", "", "(?i:e)"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0,2}", "{2}", "*?", "{1,}?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda pattern: f"(?>{pattern})"),
        inner.map(lambda pattern: f"(?P<x>{pattern})" if "(?P" not in pattern else pattern),
    ),
    max_leaves=8,
)


@given(PATTERNS)
def test_it_knows_what_matches_the_empty_text(pattern: str) -> None:
    try:
        expected = re.compile(pattern).fullmatch("") is not None
    except re.error:  # a group is named twice
        return
    assert outline(pattern).is_nullable == expected


@pytest.mark.parametrize(
    ("pattern", "undecidable", "has_anchors"),
    [
        ("ab+", None, False),
        ("^a", None, True),
        ("(?:x|a$)", None, True),
        (r"\bthe", "a word boundary", True),
        ("(?=a)b", "look-around", False),
        ("(?!)", "look-around", False),
        (r"(a)\1", "a back-reference", False),
        ("(a)?(?(1)b)", "a conditional group", False),
        ("(?>a)", "an atomic group", False),
        ("(?:ba++)*", "a possessive quantifier", False),
    ],
)
def test_what_a_pattern_has(pattern: str, undecidable: str | None, has_anchors: bool) -> None:
    found = outline(pattern)
    assert (found.undecidable, found.has_anchors) == (undecidable, has_anchors)


def test_repeats_multiply() -> None:
    assert outline(ENDLESS).max_repeats == 9999**2
    assert outline("(?:a{3}b{5}){2}|c{7}").max_repeats == 10


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "(" * 60_000, f"a{{{'9' * 5000}}}", "[[:alpha:]]"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(RegexSyntaxError):
        outline(pattern)


def test_a_pattern_that_re_would_count_for_hours_is_refused_at_once() -> None:
    with pytest.raises(InvalidSamplingParamsError, match="matches the empty text"):
        SamplingParams(stop_regex=ENDLESS)
    with pytest.raises(InvalidSamplingParamsError, match="nested set"):
        SamplingParams(stop_regex="[[:alpha:]]")
    with pytest.raises(InvalidTaskError, match="multiply to more than 10,000"):
        Filter(pattern=ENDLESS)
    with pytest.raises(InvalidSamplingParamsError, match="at most 65,536"):
        gen("x", regex="a" * (MAX_REGEX_CHARS + 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_regex": "^a"}, "an anchor has no"),
        ({"stop_regex": "a$"}, "an anchor has no"),
        ({"stop_regex": r"\bthe"}, "a word boundary"),
        ({"stop_regex": "(?=a)b"}, "look-around"),
        ({"stop_regex": r"(a)\1"}, "a back-reference"),
        ({"stop_regex": "a{513}"}, "at most 512"),
        ({"regex": "(?<=a)b"}, "look-around"),
        ({"regex": ENDLESS}, "at most 10000"),
    ],
)
def test_the_mock_takes_no_pattern_that_an_engine_never_takes(options: dict[str, str], message: str) -> None:
    def body(s: ProgramState) -> None:
        s += "q"
        s += gen("a", **options)

    backend = MockBackend("aab")
    state = Program(body).run(backend=backend)
    assert message in str(state.error())
    assert backend.requests == []


def test_a_filter_searches_the_end_of_a_text_that_is_too_long() -> None:
    text = "answer 1" + " " * 200_000 + "answer 2"
    assert Filter(pattern=r"answer (\d)").extract(text) == "1"
    assert Filter(pattern=r"answer (\d)", take="last").extract(text) == "2"
    assert Filter(pattern="answer 2").extract(text) is None
