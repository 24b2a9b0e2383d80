"""Constraints on the bundled model: the same texts with jumps and without, canonical tokens, the next turn's cache."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pydantic
import pytest

from ramet import LLM, LocalBackend, SamplingParams, function, gen
from ramet.runtime.grammar import compiler
from ramet.runtime.request import Request

PROMPT = "Harry Potter is a boy with black hair and green eyes who goes to school in a castle. The facts:\n"
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "house": {"enum": ["Gryffindor", "Slytherin"]},
        "age": {"type": "integer", "minimum": 5, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
    },
    "required": ["name", "house", "age"],
    "additionalProperties": False,
}
CONSTRAINTS: list[dict[str, Any]] = [
    {"json_schema": PERSON},
    {"json_schema": PERSON, "json_whitespace": "compact"},
    {"json_schema": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5}},
    {"json_schema": {"type": "object", "properties": {"d": {"type": "string", "format": "date"}}, "required": ["d"]}},
    {"regex": r"Name: [A-Z][a-z]+ [A-Z][a-z]+\nAge: \d{1,2}\nHair: (black|brown|red)\n"},
    {"regex": r"(\d{1,3}\.){3}\d{1,3}"},
    {"regex": r"- [^\n]{1,20}\n- [^\n]{1,20}\n"},
    {"choices": ["a wizard", "a witch", "a wizard's apprentice"]},
    {"ebnf": 'root ::= "[" item ("," " " item)* "]"\nitem ::= [a-z]+ ":" [0-9]'},
    {"regex": r"\d{3}-\d{4}", "grammar_backend": "outlines"},
]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about texts: a busy machine may take its time to compile."""
    monkeypatch.setattr(compiler, "MAX_COMPILE_S", 60.0)


@pytest.fixture(scope="module")
def stepping() -> Iterator[LLM]:
    with LLM("smollm2", jump_forward=False, check_invariants=True) as llm:
        yield llm


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda constraint: str(constraint)[:40])
def test_jumps_change_no_text(smollm2: LLM, stepping: LLM, constraint):
    params = SamplingParams(temperature=0.0, max_tokens=60, **constraint)
    before = smollm2.metrics()
    (jumped,) = smollm2.generate([PROMPT], params)
    after = smollm2.metrics()
    (stepped,) = stepping.generate([PROMPT], params)
    (sample,) = jumped.outputs
    assert sample.text == stepped.outputs[0].text
    assert sample.token_ids == stepped.outputs[0].token_ids
    num_forced = after.num_forced_tokens - before.num_forced_tokens
    assert after.num_steps - before.num_steps == len(sample.token_ids) - num_forced
    if "json_schema" in constraint and sample.complete:
        jsonschema.Draft202012Validator(constraint["json_schema"]).validate(json.loads(sample.text))
    if "regex" in constraint and sample.complete:
        assert re.fullmatch(constraint["regex"], sample.text)


def test_the_next_turn_finds_what_was_generated(smollm2: LLM):
    smollm2.reset_prefix_cache()
    (first,) = smollm2.generate([PROMPT], SamplingParams(temperature=0.0, max_tokens=60, json_schema=PERSON))
    token_ids = [*first.prompt_token_ids, *first.outputs[0].token_ids]
    (second,) = smollm2.generate([{"prompt_token_ids": token_ids}], SamplingParams(max_tokens=1))
    assert second.num_cached_tokens >= len(token_ids) - 16
    # The tokens are those that the text has when it is sent again.
    again = smollm2.tokenizer.encode(first.outputs[0].text, is_text_start=False)
    assert again == first.outputs[0].token_ids


@pytest.mark.parametrize("num_healable", [0, 1, 4])
def test_a_token_may_span_the_boundary(smollm2: LLM, num_healable):
    request = Request(
        request_id=smollm2.new_request_id(),
        prompt_token_ids=tuple(smollm2.tokenizer.encode("Is the sky blue? Answer: ")),
        sampling_params=SamplingParams(regex="(yes|no)!", temperature=0.0),
        num_healable_tokens=num_healable,
    )
    (handle,) = smollm2.submit_requests([request])
    output = handle.result()
    assert output.outputs[0].text in ("yes!", "no!")
    assert output.num_healed_tokens == min(num_healable, 1)
    first = smollm2.tokenizer.token_bytes(output.outputs[0].token_ids[0])
    assert first.startswith(b" ") == (num_healable > 0)


class Character(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=200)
    is_alive: bool


@function
def describe(s, who):
    s += f"{who} as JSON: " + gen("character", json_schema=Character, max_tokens=60, on_incomplete="close")
    s += "\nTwice the age of a child of five: " + gen("age", dtype=int, max_tokens=4)
    s += "\nA friend: " + gen("friend", regex=r"[A-Z][a-z]{2,8}")


def test_programs_get_objects(smollm2: LLM):
    with LocalBackend(smollm2) as backend:
        state = describe.run(who="Harry", temperature=0.0, backend=backend)
        assert isinstance(state["character"], Character)
        assert isinstance(state["age"], int)
        assert re.fullmatch(r"[A-Z][a-z]{2,8}", state["friend"])
        text = state.text()
        assert smollm2.tokenizer.decode(state.token_ids(), skip_special_tokens=False) == text
        assert text.startswith('Harry as JSON: {"name": "')


def test_a_refused_constraint_fails_its_own_call(smollm2: LLM):
    @function
    def broken(s):
        s += "a" + gen("x", ebnf="start: nothing")

    @function
    def fine(s):
        s += "a" + gen("x", choices=["b", "c"], temperature=1.0, max_tokens=3)

    with LocalBackend(smollm2) as backend:
        first, second = broken.run(backend=backend), fine.run(backend=backend)
        assert "unknown name" in str(first.error().__cause__)
        assert second["x"] in ("b", "c")


def test_a_limit_of_the_lexer_fails_one_request_and_not_the_next(smollm2: LLM):
    """Copies of a matcher share its lexer: what one of them breaks is made anew for the next request."""
    schema = {"type": "string", "pattern": "(a|b)*a(a|b){300}", "minLength": 40, "maxLength": 400}
    params = SamplingParams(json_schema=schema, max_tokens=40, temperature=0.0)
    first, second = (smollm2.generate(['Write "abba'], params)[0] for _ in range(2))
    assert "too complex" in str(first.error)
    assert second.outputs[0].text == first.outputs[0].text != ""


def test_many_optional_properties_stop_nobody(smollm2: LLM):
    alternatives = [
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {f"a{idx}_{other}": {"type": "integer"} for other in range(30)},
        }
        for idx in range(23)
    ]
    schema = {"type": "object", "required": ["q"], "properties": {"q": {"anyOf": alternatives}}}
    (output,) = smollm2.generate(["JSON: "], SamplingParams(json_schema=schema, max_tokens=8, temperature=0.0))
    assert output.error is not None or output.outputs[0].text.startswith('{"q": {')
    (after,) = smollm2.generate(["Hi"], SamplingParams(max_tokens=2))
    assert after.error is None


def test_min_tokens_counts_what_follows_the_prompt(smollm2: LLM):
    eos = dict.fromkeys(smollm2.tokenizer.eos_token_ids, 100.0)
    request = Request(
        request_id=smollm2.new_request_id(),
        prompt_token_ids=tuple(smollm2.tokenizer.encode("Is the sky blue? Answer: ")),
        sampling_params=SamplingParams(regex="[a-z]*", temperature=0.0, min_tokens=3, logit_bias=eos),
        num_healable_tokens=1,
    )
    (handle,) = smollm2.submit_requests([request])
    output = handle.result()
    assert output.num_healed_tokens == 1
    assert len(output.outputs[0].token_ids) - 1 == 3 + output.num_healed_tokens
