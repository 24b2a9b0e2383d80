"""Expressions are plain frozen values, checked on the line that writes them."""

from __future__ import annotations

import pytest

from ramet.frontend.errors import InvalidProgramError
from ramet.frontend.primitives import (
    Concat,
    Gen,
    RoleBegin,
    RoleEnd,
    Text,
    as_expression,
    assistant,
    gen,
    select,
    system,
    system_begin,
    system_end,
    user,
)
from ramet.sampling_params import InvalidSamplingParamsError


def test_addition_is_flat_in_any_grouping() -> None:
    one, two = gen("one"), gen("two")
    parts = (Text("a"), one, Text("b"), two, Text("c"))
    assert ("a" + one + "b" + two + "c").parts() == parts
    assert ("a" + (one + ("b" + (two + "c")))).parts() == parts
    assert as_expression(["a", one, "b" + two, "c"]) == Concat(parts)


@pytest.mark.parametrize("other", [5, None, ["a"]])
def test_addition_to_anything_else_is_a_type_error(other: object) -> None:
    with pytest.raises(TypeError):
        gen("x") + other  # type: ignore[operator]
    with pytest.raises(TypeError):
        other + gen("x")  # type: ignore[operator]


def test_role_functions_wrap_what_they_are_given() -> None:
    inner = gen("x")
    assert assistant("a" + inner).parts() == (RoleBegin("assistant"), Text("a"), inner, RoleEnd("assistant"))
    assert user("hi").parts() == (RoleBegin("user"), Text("hi"), RoleEnd("user"))
    assert system(inner).parts() == (system_begin(), inner, system_end())


def test_gen_keeps_only_what_was_set_and_reads_iterables_once() -> None:
    expression = gen("x", stop=(text for text in ["a", "b"]), stop_token_ids=iter([3]), temperature=0)
    assert isinstance(expression, Gen)
    assert expression.options == {"stop": ("a", "b"), "stop_token_ids": (3,), "temperature": 0}
    assert gen() == gen()


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_k": 0.5},
        {"max_tokens": 0},
        {"stop": [""]},
        {"top_p": 0},
        {"n": 0},
        {"logit_bias": {1: 500}},
        {"min_tokens": 5, "max_tokens": 4},
    ],
)
def test_gen_checks_its_options_at_once(options: dict[str, float]) -> None:
    with pytest.raises(InvalidSamplingParamsError, match=next(iter(options))):
        gen("x", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", 3])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(InvalidProgramError, match="a name is a non-empty string"):
        gen(name)
    with pytest.raises(InvalidProgramError, match="a name is a non-empty string"):
        select(name, ["a"])
