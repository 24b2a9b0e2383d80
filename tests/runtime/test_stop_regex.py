"""Stop regexes against their definition by `re`, on their own, in a text cut into tokens, and on a model."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet import LLM, InvalidRequestError, InvalidSamplingParamsError, SamplingParams
from ramet.runtime.detokenizer import IncrementalDetokenizer
from ramet.runtime.stop_finder import StopFinder, StopMatch
from ramet.runtime.stop_regex import MAX_STOP_REGEX_POSITIONS, StopRegexMatcher, compile_stop_regex

ATOMS = st.sampled_from(["a", "b", "é", "[ab]", ".", r"\w", "a?", "b*", "(ab|é)", "a{2}", "(a|b){1,2}", "[^a]"])
PATTERNS = st.lists(ATOMS, min_size=1, max_size=4).map("".join).filter(lambda pattern: not re.fullmatch(pattern, ""))
TEXTS = st.text(st.sampled_from("abé\nx"), max_size=16)


def first_match(pattern: str, text: str) -> tuple[int, int] | None:
    """Where the first match that is complete begins and ends; the longest of those that end there."""
    compiled = re.compile(pattern)
    for end in range(1, len(text) + 1):
        for start in range(end):
            if compiled.fullmatch(text, start, end):
                return start, end
    return None


@given(PATTERNS, TEXTS)
def test_a_match_is_found_at_its_first_complete_character(pattern, text):
    matcher = StopRegexMatcher(compile_stop_regex(pattern))
    expected = first_match(pattern, text)
    for end, char in enumerate(text, 1):
        num_chars = matcher.feed(char)
        if expected is not None and end == expected[1]:
            assert num_chars == end - expected[0]
            return
        assert num_chars is None


@given(PATTERNS, TEXTS)
def test_what_is_held_back_is_enough(pattern, text):
    """No match of a longer text begins before what is held back; and nothing is held that no text could complete."""
    matcher = StopRegexMatcher(compile_stop_regex(pattern))
    automaton = compile_stop_regex(pattern).automaton
    for end, char in enumerate(text, 1):
        if matcher.feed(char) is not None:
            return
        viable = [start for start in range(end) if automaton.is_viable(text[start:end].encode())]
        assert matcher.num_held_chars == (end - viable[0] if viable else 0)


class Pieces:
    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id].encode()

    def is_special(self, token_id: int) -> bool:
        return False


@given(PATTERNS, TEXTS, st.lists(st.integers(1, 4), min_size=16, max_size=16))
def test_the_cut_does_not_depend_on_the_tokens(pattern, text, sizes):
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    detokenizer = IncrementalDetokenizer(Pieces(pieces), [], [compile_stop_regex(pattern)])
    shown = "".join(detokenizer.append([idx]) for idx in range(len(pieces))) + detokenizer.finish()
    expected = first_match(pattern, text)
    assert shown == detokenizer.text == (text if expected is None else text[: expected[0]])
    assert detokenizer.stop_string == (None if expected is None else pattern)
    kept = "".join(pieces[: detokenizer.num_tokens_within_text])
    assert kept + detokenizer.leftover_text == detokenizer.text


def test_of_several_stops_the_first_complete_and_then_the_longest_counts():
    finder = StopFinder(["bc", "c"], [compile_stop_regex("ab+c"), compile_stop_regex("[0-9]+")])
    assert [finder.feed(char) for char in "xab"] == [None] * 3
    assert finder.num_held_chars == 2
    assert finder.feed("c") == StopMatch("ab+c", 3)
    assert finder.feed("7") == StopMatch("[0-9]+", 1)


def test_a_match_before_min_tokens_is_text():
    detokenizer = IncrementalDetokenizer(Pieces(["a1", "b", "2c"]), [], [compile_stop_regex("[0-9]")], min_tokens=2)
    assert [detokenizer.append([idx]) for idx in range(3)] == ["a1", "b", ""]
    assert (detokenizer.text, detokenizer.stop_string) == ("a1b", "[0-9]")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "missing"),
        ("a*", "matches the empty text"),
        ("", "matches the empty text"),
        ("a" * 257, "at most 256 characters"),
    ],
)
def test_bad_patterns_are_refused_where_they_are_written(pattern, message):
    with pytest.raises(InvalidSamplingParamsError, match=message):
        SamplingParams(stop_regex=pattern)


def test_more_than_32_patterns_are_refused():
    with pytest.raises(InvalidSamplingParamsError, match="at most 32"):
        SamplingParams(stop_regex=["a"] * 33)
    with pytest.raises(InvalidSamplingParamsError, match="use_beam_search"):
        SamplingParams(stop_regex="a", use_beam_search=True, temperature=0.0)
    with pytest.raises(InvalidSamplingParamsError, match="a stop regex could cut"):
        SamplingParams(stop_regex="a", regex="a+", on_incomplete="close")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("^a", r"\^ has no meaning"),
        ("a$", "has no meaning"),
        (r"\bfoo", "position 0"),
        ("(?=a)b", "position 0"),
        (r"(a)\1", "position 3"),
        (f"[ab]{{{MAX_STOP_REGEX_POSITIONS + 1}}}", "at most 512"),
    ],
)
def test_what_cannot_be_looked_for_is_refused_at_submit(pattern, message):
    with pytest.raises(InvalidRequestError, match=message):
        compile_stop_regex(pattern)


@pytest.mark.model
def test_on_a_model(smollm2: LLM):
    prompt = "1, 2, 3, 4, 5, 6, 7,"
    params = SamplingParams(temperature=0.0, max_tokens=40)
    (free,) = smollm2.generate([prompt], params)
    text = free.outputs[0].text
    pattern = "1[0-9], 1[2-9]"
    expected = first_match(pattern, text)
    assert expected is not None
    (output,) = smollm2.generate([prompt], params.replace(stop_regex=[pattern]))
    assert output.outputs[0].text == text[: expected[0]]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", pattern)
    with pytest.raises(InvalidRequestError, match="has no meaning"):
        smollm2.generate([prompt], params.replace(stop_regex="^a"))
