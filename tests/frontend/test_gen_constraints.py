"""What a gen may be told about its text: the arguments, what they become, and what is refused where it is written."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel

import ramet
from ramet.frontend.backend import GenerateCall, ScoreCall
from ramet.frontend.backends.mock import MockBackend
from ramet.frontend.choices import sum_logprobs
from ramet.frontend.errors import InvalidProgramError
from ramet.frontend.primitives import Gen, Select, gen
from ramet.frontend.program import function
from ramet.frontend.state import ProgramState
from ramet.frontend.typed_gens import gen_int, gen_string
from ramet.frontend.value_types import DTYPE_PATTERNS
from ramet.sampling_params import InvalidSamplingParamsError, SamplingParams


class Hero(BaseModel):
    name: str
    age: int


def written(**options: Any) -> Gen:
    expression = gen("x", **options)
    assert isinstance(expression, Gen)
    return expression


@pytest.mark.parametrize(
    "options",
    [
        {"regex": "[0-9]+"},
        {"ebnf": 'root ::= "a"'},
        {"json_schema": '{"type": "integer"}', "json_whitespace": "compact"},
        {"choices": ("a", "b"), "temperature": 0.5},
        {"regex": "a+", "on_incomplete": "close", "grammar_backend": "outlines"},
    ],
)
def test_a_constraint_reaches_the_backend_as_it_was_written(options: dict[str, Any]) -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "q" + gen("x", **options)

    backend = MockBackend(mode="manual")
    state = program.run(backend=backend)
    (request,) = backend.requests
    assert isinstance(request.call, GenerateCall)
    expected = SamplingParams(**{"max_tokens": 128, **options})
    assert request.call.sampling_params == expected == state.calls()[-1].sampling_params
    assert expected.grammar_spec is not None


def test_a_schema_is_taken_as_it_was_when_it_was_written() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    options = written(json_schema=schema).options
    schema["properties"]["name"] = {"type": "string"}
    assert json.loads(options["json_schema"]) == {"type": "object", "properties": {}}
    closed = Hero.model_json_schema() | {"additionalProperties": False}
    assert json.loads(written(json_schema=Hero).options["json_schema"]) == closed


def test_choices_may_be_anything_that_lists_texts() -> None:
    assert written(choices=(text for text in ("a", "b")), temperature=1.0).options["choices"] == ("a", "b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "a", "ebnf": "root ::= x"}, "ebnf='root ::= x' is not allowed: regex is given too"),
        ({"choices": ["a"], "json_schema": {}}, "choices=.* is not allowed: json_schema is given too"),
        ({"dtype": int, "regex": "a"}, "dtype=int is not allowed: regex is given too, and a text has one constraint"),
        ({"dtype": bool, "choices": ["a"]}, "dtype=bool is not allowed: choices is given too"),
        ({"dtype": list}, r"dtype=list is not allowed: it must be int, float, bool or str \(model classes"),
        ({"dtype": "int"}, "dtype='int' is not allowed"),
        ({"dtype": Hero}, "dtype=Hero is not allowed: .*json_schema"),
        ({"choices": []}, r"choices=\[\] is not allowed: give at least one choice"),
        ({"choices": "ab"}, "choices='ab' is not allowed: it must be a list of strings"),
        ({"choices": ["a", "a"]}, "choices has a text twice"),
        ({"regex": ""}, "regex='' is not allowed: it must be a non-empty string"),
        ({"regex": "a(b"}, r"regex='a\(b' is not allowed: missing \)"),
        ({"regex": "a{99999999999}"}, r"regex='a\{99999999999\}' is not allowed"),
        ({"json_schema": "{"}, "json_schema=.* is not JSON"),
        ({"json_schema": 3}, "json_schema=3 must be a dict, JSON text or a pydantic model class"),
        ({"json_whitespace": "compact", "regex": "a"}, "json_whitespace='compact' is not allowed: without json_schema"),
        ({"json_schema": {}, "json_whitespace": "wide"}, "json_whitespace='wide' is not allowed"),
        ({"regex": "a", "on_incomplete": "ignore"}, "on_incomplete='ignore' is not allowed"),
        ({"on_incomplete": "raise"}, "on_incomplete='raise' is not allowed: nothing is constrained"),
        ({"grammar_backend": "outlines"}, "grammar_backend='outlines' is not allowed: nothing is constrained"),
        ({"dtype": int, "on_incomplete": "close", "stop": "."}, "a stop string could cut the text short"),
    ],
)
def test_what_contradicts_is_refused_where_it_is_written(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSamplingParamsError, match=message):
        gen("x", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parse": True}, "parse=True is not allowed: it needs a json_schema or a dtype"),
        ({"parse": True, "regex": "a"}, "parse=True is not allowed"),
        ({"parse": "yes", "json_schema": {}}, "parse='yes' is not allowed: it must be True, False or None"),
        ({"heal": True}, "heal=True is not allowed: only the text of a constrained gen"),
        ({"heal": 0, "regex": "a"}, "heal=0 is not allowed: it must be True, False or None"),
        ({"choices_method": "sum"}, "choices_method='sum'.* is not allowed: .*`choices`"),
        (
            {"choices_method": "sum", "choices": ["a"], "temperature": 0.5},
            "choices_method='sum'.* no temperature above 0",
        ),
        ({"choices": ["a", "b"], "choices_method": "best"}, "unknown choices method 'best'"),
        ({"choices": ["a", "b"], "n": 2}, "n=2.* is not allowed: without a temperature above 0 it is a select"),
        ({"choices": ["a", "b"], "logprobs": 0}, "knows no logprobs; give a temperature"),
        ({"choices": ["a", "b"], "logit_bias": {1: 2.0}}, "knows no logit_bias"),
        ({"choices": ["a", "b"], "on_incomplete": "raise"}, "knows no on_incomplete"),
        ({"choices": ["a", "b"], "heal": False}, "knows no heal"),
        ({"dtypes": int}, "gen got an unknown argument 'dtypes'; did you mean 'dtype'?"),
    ],
)
def test_what_means_nothing_is_refused_where_it_is_written(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProgramError, match=message):
        gen("x", **options)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0}, {"temperature": 0.0, "max_tokens": 5, "stop": ["\n"], "n": 1, "heal": True}]
)
def test_choices_without_a_temperature_are_a_select(options: dict[str, Any]) -> None:
    """What scripts written for SGLang expect of gen(choices=)."""
    expression = gen("x", choices=["a", "b"], choices_method="sum", **options)
    assert isinstance(expression, Select)
    assert (expression.name, expression.choices, expression.method) == ("x", ("a", "b"), sum_logprobs)

    @function
    def program(s: ProgramState) -> None:
        s += "q" + gen("x", choices=["long", "b"], **options)

    backend = MockBackend()
    assert program.run(backend=backend)["x"] == "b"
    assert isinstance(backend.requests[0].call, ScoreCall)


def test_the_temperature_of_the_run_does_not_turn_a_select_into_a_gen() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "q" + gen("x", choices=["a", "b"])

    backend = MockBackend()
    assert program.run(backend=backend, temperature=0.9)["x"] == "a"
    assert isinstance(backend.requests[0].call, ScoreCall)


def test_choices_with_a_temperature_are_sampled() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "q" + gen("x", choices=["a", "b"], temperature=0.7, n=3)

    backend = MockBackend(["b", "a", "b"])
    state = program.run(backend=backend)
    assert state["x"] == ["b", "a", "b"]
    assert state.text() == "qb"
    assert state.meta("x").complete is True


def test_gen_int_and_gen_string_are_gens_with_a_dtype() -> None:
    assert gen_int("x", 5, stop=".") == gen("x", 5, dtype=int, stop=".")
    assert gen_string("x", temperature=0.0) == gen("x", dtype=str, temperature=0.0)
    assert (ramet.gen_int, ramet.gen_string) == (gen_int, gen_string)
    with pytest.raises(InvalidProgramError, match="unknown argument 'max_token'; did you mean 'max_tokens'"):
        gen_int("x", max_token=3)


@pytest.mark.parametrize(
    ("dtype", "texts", "others"),
    [
        (int, ["0", "-7", "123456789012345678"], ["", "-", "007", "+1", "1.5", " 1", "1234567890123456789", "٣"]),
        (float, ["0", "-0.5", "12.25", "3"], [".5", "1.", "1e5", "nan", "01.5"]),
        (bool, ["True", "False"], ["true", "1", "Falsey"]),
        (str, ['""', '"a b"', r'"say \"hi\"\n"', '"naïve 日本"'], ["a", '"a', '"a"b"', '"a\nb"', r'"\x"', '"a\\"']),
    ],
)
def test_the_pattern_of_a_type_allows_what_becomes_a_value(dtype: type, texts: list[str], others: list[str]) -> None:
    value_type = written(dtype=dtype).value_type
    assert value_type is not None
    for text in texts:
        assert re.fullmatch(DTYPE_PATTERNS[dtype], text), text
        assert type(value_type.parse(text)) is dtype
    assert [text for text in others if re.fullmatch(DTYPE_PATTERNS[dtype], text)] == []


@pytest.mark.parametrize("option", ["regex", "json_schema", "ebnf", "choices", "on_incomplete", "grammar_backend"])
@pytest.mark.parametrize("method", ["run", "stream"])
def test_a_run_does_not_constrain_every_gen(option: str, method: str) -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "q" + gen("x")

    with pytest.raises(
        InvalidProgramError, match=rf"program.{method} does not take '{option}'.*gen\(..., {option}=...\)"
    ):
        getattr(program, method)(backend=MockBackend(), **{option: "a"})


def test_a_program_may_have_arguments_of_these_names() -> None:
    @function
    def program(s: ProgramState, regex: str) -> None:
        s += "q" + gen("x", regex=regex)

    assert program.run(regex="[a-z]+", backend=MockBackend("abc"))["x"] == "abc"
