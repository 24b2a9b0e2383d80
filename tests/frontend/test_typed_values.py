"""Values that are more than text: what a gen's text becomes, and what a reader meets when it does not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, field_validator

from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.errors import ForkError, GenerationError, UnparsedTextError
from ramet.frontend.primitives import gen
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState


class Hero(BaseModel):
    name: str
    age: int

    @field_validator("age")
    @classmethod
    def is_alive(cls, age: int) -> int:
        if age < 0:
            raise ValueError("not born yet")
        return age


HARRY = '{"name": "Harry", "age": 11}'


@function
def fill(s: ProgramState, options: dict[str, Any]) -> None:
    s += "It is: " + gen("x", **options)
    s += "." + gen("after", max_tokens=3)


def run(replies: list[str], **options: Any) -> ProgramState:
    return fill.run(options, backend=MockBackend([*replies, "ok"]))


@pytest.mark.parametrize(
    ("options", "text", "value"),
    [
        ({"dtype": int}, "-42", -42),
        ({"dtype": float}, "2.50", 2.5),
        ({"dtype": bool}, "False", False),
        ({"dtype": str}, r'"say \"hi\""', 'say "hi"'),
        ({"dtype": int, "parse": False}, "-42", "-42"),
        ({"json_schema": Hero}, HARRY, Hero(name="Harry", age=11)),
        ({"json_schema": Hero, "parse": False}, HARRY, HARRY),
        ({"json_schema": Hero.model_json_schema()}, HARRY, HARRY),
        ({"json_schema": Hero.model_json_schema(), "parse": True}, HARRY, {"name": "Harry", "age": 11}),
        ({"json_schema": '{"type": "array"}', "parse": True}, "[1, 2]", [1, 2]),
        ({"regex": "[0-9]+"}, "42", "42"),
        ({"ebnf": 'root ::= "a"'}, "a", "a"),
    ],
)
def test_the_value_is_an_object_and_the_text_is_what_was_generated(
    options: dict[str, Any], text: str, value: object
) -> None:
    state = run([text], **options)
    assert (state["x"], type(state["x"])) == (value, type(value))
    assert state.text() == f"It is: {text}.ok"
    assert "".join(state.text_iter("x")) == text
    assert state.meta("x").complete is True
    assert state.meta("x").samples[0].text == text
    assert state.meta("after").complete is None
    assert state.error() is None


def test_several_samples_are_a_list_of_objects_and_the_first_goes_on() -> None:
    state = run(["1", "22", "333"], dtype=int, n=3)
    assert state["x"] == [1, 22, 333]
    assert state.text() == "It is: 1.ok"
    assert [sample.complete for sample in state.meta("x").samples] == [True, True, True]


def test_a_text_that_was_cut_off_is_no_object_but_still_a_text() -> None:
    state = run([HARRY], json_schema=Hero, max_tokens=12)
    with pytest.raises(UnparsedTextError) as failure:
        state["x"]
    message = str(failure.value)
    assert failure.value.text == HARRY[:12]
    assert "gen 'x' at test_typed_values.py:" in message
    assert "max_tokens=12 cut its text off before it was complete" in message
    assert repr(HARRY[:12]) in message
    assert isinstance(failure.value, GenerationError)
    # All but the value is there, and the program went on.
    assert state.text() == f"It is: {HARRY[:12]}.ok"
    assert "".join(state.text_iter()) == state.text()
    assert "".join(state.text_iter("x")) == HARRY[:12]
    assert (state.meta("x").complete, state.meta("x").finish_reason) == (False, "length")
    assert state["after"] == "ok"
    record = next(call for call in state.calls() if call.name == "x")
    assert record.meta is not None
    assert record.failure is not None
    assert str(state.error()) == message


def test_a_text_that_is_read_as_text_is_handed_back_however_it_ended() -> None:
    state = run([HARRY], json_schema=Hero, parse=False, max_tokens=12)
    assert state["x"] == HARRY[:12]
    assert state.meta("x").complete is False
    assert state.error() is None


def test_a_stop_that_cuts_a_text_is_named() -> None:
    state = run([HARRY], json_schema=Hero, stop=",")
    with pytest.raises(UnparsedTextError, match="the stop ',' cut its text off") as failure:
        state["x"]
    assert failure.value.text == '{"name": "Harry"'


def test_what_the_model_class_refuses_is_the_cause() -> None:
    text = '{"name": "Tom", "age": -1}'
    state = run([text], json_schema=Hero)
    with pytest.raises(UnparsedTextError, match=r"its text is no Hero: (.|\n)*not born yet") as failure:
        state["x"]
    assert isinstance(failure.value.__cause__, ValidationError)
    assert failure.value.text == text
    assert state.meta("x").complete is True


def test_one_cut_sample_of_several_is_named_and_the_others_are_in_the_meta() -> None:
    state = run(['"ab"', '"abcdef"'], dtype=str, n=2, max_tokens=4)
    with pytest.raises(UnparsedTextError, match="max_tokens=4 cut text 2 of 2 off") as failure:
        state["x"]
    assert failure.value.text == '"abc'
    assert [(sample.text, sample.complete) for sample in state.meta("x").samples] == [('"ab"', True), ('"abc', False)]


def test_a_long_text_is_whole_in_the_error_and_short_in_its_message() -> None:
    state = run([f'"{"a" * 500}"'], dtype=str, max_tokens=400)
    with pytest.raises(UnparsedTextError) as failure:
        state["x"]
    assert len(failure.value.text) == 400
    assert str(failure.value).endswith(f"'\"{'a' * 199}...'")


@pytest.mark.parametrize("on_incomplete", ["raise", "close"])
def test_a_cut_text_that_must_be_complete_fails_the_call(on_incomplete: str) -> None:
    state = run([HARRY], json_schema=Hero, parse=False, max_tokens=12, on_incomplete=on_incomplete)
    with pytest.raises(GenerationError, match=f"on_incomplete='{on_incomplete}'"):
        state["x"]
    with pytest.raises(GenerationError, match=r"gen 'after' .* was not run"):
        state["after"]


def test_values_of_branches_join_as_objects_and_errors_as_entries() -> None:
    @function
    def program(s: ProgramState, on_error: Any) -> None:
        s += "n: "
        branches = s.fork(3)
        for idx, branch in enumerate(branches):
            branch += str(idx) + gen("x", dtype=str, max_tokens=4)
        branches.join(on_error=on_error)

    replies = ['"a"', '"toolong"', '""']
    state = program.run("return", backend=MockBackend(replies))
    first, second, third = state["x"]
    assert (first, third) == ("a", "")
    assert isinstance(second, UnparsedTextError)
    assert [meta.complete for meta in state.metas("x")] == [True, False, True]
    assert isinstance(state.error(), UnparsedTextError)
    with pytest.raises(ForkError, match="1 of 3 branches did not give 'x'; entry 1: gen 'x'"):
        program.run("raise", backend=MockBackend(replies))["x"]


def test_a_program_can_go_on_from_a_value() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "How many? " + gen("count", dtype=int)
        for idx in range(s["count"]):
            s += f"\n{idx}: " + gen(f"item {idx}")

    state = program.run(backend=MockBackend(["2", "a", "b"]))
    assert state.text() == "How many? 2\n0: a\n1: b"
