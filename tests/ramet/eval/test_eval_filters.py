"""Filters: the answer in a text, and whether it is right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.eval import Filter, InvalidTaskError

EXTRACTIONS: list[tuple[dict[str, Any], str, str | None]] = [
    ({}, "  42 \n", "42"),
    ({"normalise": ()}, " 42", " 42"),
    ({"pattern": r"#### (-?[0-9.,]+)"}, "so #### 1,234 #### 5", "1,234"),
    ({"pattern": r"#### (-?[0-9.,]+)", "take": "last"}, "so #### 1,234 #### 5", "5"),
    ({"pattern": r"#### (\d+)"}, "no answer", None),
    ({"pattern": r"\d+"}, "a 12 b", "12"),
    ({"pattern": r"(x)|(y)"}, "zy", "y"),
    ({"pattern": r"a(x)?"}, "a", "a"),
    ({"pattern": r"answer is (.+?)(?:\.\s|\.?\s*$)", "ignore_case": True}, "So the Answer is (B).", "(B)"),
    ({"pattern": r"answer is (.+?)(?:\.\s|\.?\s*$)"}, "the answer is 3.5. Then more.", "3.5"),
    (
        {"normalise": ["strip", "lower", "articles", "punctuation", "whitespace"]},
        " The Eiffel  Tower! ",
        "eiffel tower",
    ),
    ({"normalise": ["number"]}, "$1,000.", "1000"),
    ({"normalise": ["number"]}, "about ten", "about ten"),
]


@pytest.mark.parametrize(("options", "text", "answer"), EXTRACTIONS)
def test_extraction(options: dict[str, Any], text: str, answer: str | None) -> None:
    assert Filter(**options).extract(text) == answer


@pytest.mark.parametrize(
    ("answer", "target", "is_right"),
    [
        ("18", "18", True),
        ("18.00", "18", True),
        ("$1,234", "1234", True),
        ("1234.", "1234", True),
        ("-5", "5", False),
        ("-$5", "-5", True),
        ("12 %", "12", True),
        ("eighteen", "18", False),
        ("", "18", False),
        ("1e999999999", "18", False),
        ("NaN", "18", False),
        ("1_8", "18", False),
        ("٣", "3", False),
        ("9" * 5000, "18", False),
    ],
)
def test_numbers_are_compared_by_value(answer: str, target: str, is_right: bool) -> None:
    numbers = Filter(compare="number")
    assert numbers.is_right(numbers.extract(answer), [target]) is is_right


def test_texts_are_compared_after_normalisation() -> None:
    each = Filter(normalise=["strip", "lower"])
    assert each.is_right(each.extract(" PARIS"), ["London", "paris "])
    assert not each.is_right(each.extract("Rome"), ["London", "paris "])
    assert not each.is_right(None, ["x"])


def test_the_target_may_be_a_worked_solution() -> None:
    gsm = Filter(pattern=r"(-?\d+)", take="last", compare="number", target_pattern=r"#### (-?\d+)")
    target = "3 + 4 = <<3+4=7>>7\n#### 7"
    gsm.check_target(target)
    assert gsm.is_right(gsm.extract("it is 3, so 7"), [target])
    with pytest.raises(InvalidTaskError, match="does not match the target"):
        gsm.check_target("7")
    with pytest.raises(InvalidTaskError, match="compares numbers"):
        Filter(compare="number").check_target("seven")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "("}, "no regular expression"),
        ({"pattern": 3}, "no regular expression"),
        ({"target_pattern": "["}, "no regular expression"),
        ({"take": "middle"}, "take='middle'"),
        ({"compare": "float"}, "compare='float'"),
        ({"normalise": "strip"}, "must be a list"),
        ({"normalise": ["stripp"]}, "did you mean 'strip'"),
        ({"name": ""}, "non-empty string"),
        ({"ignore_case": 1}, "true or false"),
        ({"patern": "x"}, "did you mean 'pattern'"),
    ],
)
def test_what_a_filter_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTaskError, match=message):
        Filter(**options)


@given(st.integers(-(10**12), 10**12))
def test_every_way_to_write_a_number_is_the_same_number(number: int) -> None:
    numbers = Filter(compare="number")
    for spelled in (f"{number:,}", f"{number}.0", f" {number}. ", f"{number}.00%"):
        assert numbers.is_right(spelled, [str(number)])
        assert not numbers.is_right(spelled, [str(number + 1)])
