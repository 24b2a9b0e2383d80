"""Schemas as people write them: every valid instance is accepted, no invalid one is, and refusals name the keyword."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from ramet.runtime.grammar.errors import UnsupportedSchemaError


def load_corpus() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "corpus" / "schemas.py"
    spec = importlib.util.spec_from_file_location("grammar_corpus_schemas", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CASES: list[Any] = load_corpus().SCHEMA_CASES
ENFORCED = [case for case in CASES if case.valid]
REFUSED = [case for case in CASES if not case.valid]


def test_the_corpus_is_large() -> None:
    assert len(ENFORCED) >= 150
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", ENFORCED, ids=lambda case: case.name)
def test_instances_are_accepted_as_they_should_be(case: Any, compile_schema: Callable[..., Any]) -> None:
    compiled = compile_schema(case.schema)
    written = [(value, json.dumps(value, ensure_ascii=False)) for value in (*case.valid, *case.invalid)]
    accepted = [value for value, text in written if compiled.accepts(text)]
    assert accepted == case.valid


@pytest.mark.parametrize("case", ENFORCED, ids=lambda case: case.name)
def test_other_whitespace_accepts_the_same_instances(case: Any, compile_schema: Callable[..., Any]) -> None:
    compact, flexible = compile_schema(case.schema, "compact"), compile_schema(case.schema, "flexible", "Answer: ")
    for value in case.valid:
        assert compact.accepts(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        assert flexible.accepts("Answer: " + json.dumps(value, ensure_ascii=False, separators=(" ,\t", "  : ")))
    for value in case.invalid:
        assert not compact.accepts(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
        assert not flexible.accepts("Answer: " + json.dumps(value, ensure_ascii=False, indent=1))


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_cannot_be_enforced_is_refused_by_keyword(case: Any, compile_schema: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedSchemaError) as caught:
        compile_schema(case.schema)
    assert caught.value.keyword == case.refused
    assert caught.value.path == "" or caught.value.path.startswith("/")


@pytest.mark.parametrize("case", ENFORCED, ids=lambda case: case.name)
def test_random_texts_are_valid(case: Any, compile_schema: Callable[..., Any]) -> None:
    validator = validator_for(case.schema, Draft202012Validator)(case.schema)
    compiled = compile_schema(case.schema)
    for seed in range(2):
        text = compiled.random_text(seed)
        if text is not None:
            assert not list(validator.iter_errors(json.loads(text))), text
