"""Templates: fields of an item in a text, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.eval.errors import InvalidTaskError
from ramet.eval.template import parse_template

RECORD = {"question": "2 + 2?", "n": 4, "options": ["3", "4"], "meta": {"source": {"page": 7}}, "none": None}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("Q: {question}", "Q: 2 + 2?"),
        ("{ question }{n}", "2 + 2?4"),
        ("{options.1} of {meta.source.page}", "4 of 7"),
        ("{{question}} {{", "{question} {"),
        ('{{"a": {n}}}', '{"a": 4}'),
        ("no field", "no field"),
        ("", ""),
    ],
)
def test_rendering(source: str, text: str) -> None:
    assert parse_template(source).render(RECORD) == text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{qestion}", "did you mean 'question'"),
        ("{options}", "is a list"),
        ("{meta}", "is an object"),
        ("{none}", "is null"),
        ("{options.7}", "no field '7'; it has 0, 1"),
        ("{options.-1}", "no field '-1'"),
        ("{meta.source.pages}", "'meta.source' of the item has no field 'pages'"),
        ("{question.upper}", "no field 'upper'"),
        ("{n.__class__}", "no field '__class__'"),
    ],
)
def test_what_a_record_does_not_have(source: str, message: str) -> None:
    with pytest.raises(InvalidTaskError, match=message):
        parse_template(source).render(RECORD)


@pytest.mark.parametrize("source", ["{question", "question}", "{}", "{a..b}", "{a{b}}", "{ }"])
def test_what_is_no_template(source: str) -> None:
    with pytest.raises(InvalidTaskError, match="template"):
        parse_template(source)


def test_one_field_may_stand_for_a_list() -> None:
    assert parse_template("{options}").render_all(RECORD) == ["3", "4"]
    assert parse_template("{question}").render_all(RECORD) == ["2 + 2?"]
    with pytest.raises(InvalidTaskError, match="is a list"):
        parse_template(" {options}").render_all(RECORD)
    with pytest.raises(InvalidTaskError, match=r"'options\.1' is null"):
        parse_template("{options}").render_all({"options": ["a", None]})


@given(st.text())
def test_doubled_braces_spell_any_text(text: str) -> None:
    assert parse_template(text.replace("{", "{{").replace("}", "}}")).render({}) == text


@given(st.text(), st.text())
def test_fields_are_never_read_as_templates(value: str, other: str) -> None:
    assert parse_template("<{a}|{b}>").render({"a": value, "b": other}) == f"<{value}|{other}>"
