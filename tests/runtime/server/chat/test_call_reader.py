"""Texts are taken apart the same way whole and in any pieces, and a mark is never shown."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.server.chat.call_reader import Arguments, CallBegin, CallReader, Content
from ramet.tool_formats import TOOL_FORMATS, ToolFormat

NAMES = ("f", "weather", 'odd "name"')
FORMATS = list(TOOL_FORMATS.values())


def read(
    tool_format: ToolFormat, pieces: Iterable[str], *, is_cut: bool = False
) -> tuple[str, list[tuple[str, str]], list[str]]:
    """Content, calls, and the single contents as they were shown."""
    reader = CallReader(tool_format, NAMES)
    shown: list[str] = []
    calls: list[tuple[str, str]] = []

    def take(piece: object) -> None:
        match piece:
            case Content():
                shown.append(piece.text)
            case CallBegin():
                calls.append((piece.name, ""))
            case Arguments():
                calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)

    for text in pieces:
        for piece in reader.feed(text):
            take(piece)
    for piece in reader.finish(is_cut=is_cut):
        take(piece)
    assert reader.num_calls == len(calls)
    return "".join(shown), calls, shown


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(['"', "\\", "}", "</tool_call>"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(max_size=4), json_values, max_size=3)
calls_made = st.lists(st.tuples(st.sampled_from(NAMES), arguments), min_size=1, max_size=3)
cuts = st.lists(st.integers(0, 400), max_size=12)


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda each: each.name)
@given(made=calls_made, before=st.sampled_from(["", "Let me see. ", "a <tool", "x\n\n"]), places=cuts)
def test_calls_are_read_whole_and_in_pieces(
    tool_format: ToolFormat, made: list[tuple[str, dict[str, object]]], before: str, places: list[int]
) -> None:
    if tool_format.is_whole_text:
        before = ""
    text = before + tool_format.write(made)
    content, calls, shown = read(tool_format, cut(text, places))
    assert content == before.rstrip()
    assert [(name, json.loads(given)) for name, given in calls] == made
    assert not any(tool_format.mark in piece for piece in shown)
    assert (content, calls) == read(tool_format, [text])[:2]


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda each: each.name)
@given(text=st.text(alphabet='<tol_cal> \n{"name: x}', max_size=60), places=cuts)
def test_other_text_is_content_down_to_the_last_character(
    tool_format: ToolFormat, text: str, places: list[int]
) -> None:
    whole = read(tool_format, [text])
    assert whole[:2] == read(tool_format, cut(text, places))[:2]
    if tool_format.mark not in text:
        assert whole[:2] == (text, [])


def test_a_call_that_was_cut_off_keeps_what_is_there_of_its_arguments() -> None:
    hermes = TOOL_FORMATS["hermes"]
    text = "Hm. " + hermes.write([("f", {"city": "Rome"})])
    end = text.index("Rome") + 2
    assert read(hermes, [text[:end]])[:2] == ("Hm.", [("f", '{"city": "Ro')])
    assert read(hermes, ["Hm. <tool_call>\n"])[:2] == ("Hm.", [])
    assert read(hermes, ["Hm. <tool_cal"])[:2] == ("Hm. <tool_cal", [])


def test_what_may_be_the_beginning_of_a_mark_is_not_shown_of_a_text_that_was_cut_off() -> None:
    assert read(TOOL_FORMATS["hermes"], ["Hm. <tool_cal"], is_cut=True)[0] == "Hm."
    assert read(TOOL_FORMATS["hermes"], ["Hm. "], is_cut=True)[0] == "Hm. "
    assert read(TOOL_FORMATS["json"], ['{"na'], is_cut=True)[0] == ""
    assert read(TOOL_FORMATS["json"], ['{"no'], is_cut=True)[0] == '{"no'


def test_a_mark_without_a_call_is_content() -> None:
    hermes = TOOL_FORMATS["hermes"]
    assert read(hermes, ["a <tool_call> b ", hermes.write([("f", {})])])[:2] == ("a <tool_call> b", [("f", "{}")])
    assert read(hermes, [hermes.write([("g", {})])])[0] == hermes.write([("g", {})])


def test_content_after_a_call_follows_what_was_before() -> None:
    hermes = TOOL_FORMATS["hermes"]
    call = hermes.write([("f", {})])
    assert read(hermes, [f"a\n{call}\nb"])[:2] == ("a\nb", [("f", "{}")])
    assert read(hermes, [f"{call}\nb"])[:2] == ("b", [("f", "{}")])
