"""The shortest ending: it is allowed, complete, and no longer than any other that breadth-first search finds."""

# ruff: noqa: E501

from __future__ import annotations

import json
from typing import Any

import pytest

from ramet.grammar_spec import GrammarKind, GrammarSpec
from ramet.runtime.grammar.interface import GrammarState
from ramet.runtime.grammar.llguidance_backend import LlguidanceBackend
from ramet.runtime.grammar.shortest_ending import shortest_ending
from ramet.runtime.grammar.vocabulary import GrammarVocabulary
from ramet.runtime.tokenizer import Tokenizer, load_tokenizer
from ramet.runtime.weights.resolve import resolve_path

STRING = {"type": "string"}
TEN_STRINGS = {
    "type": "object",
    "properties": {f"field{idx}": STRING for idx in range(10)},
    "required": [f"field{idx}" for idx in range(10)],
}
LIST = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "number"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
}
BRANCHES = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"const": "aaa"}, "more": TEN_STRINGS}, "required": ["kind", "more"]},
        {"type": "object", "properties": {"kind": {"const": "bbb"}}, "required": ["kind"]},
    ]
}

# Schema, what was generated, and the shortest text that completes it.
ENDINGS: list[tuple[Any, str, str]] = [
    ({"type": "object"}, "", "{}"),
    ({"type": "object"}, '{"a": [1, {"b": "c', '"}]}'),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 5}, "", "[0, 0, 0, 0, 0]"),
    ({"type": "array", "items": STRING}, '["a', '"]'),
    ({"type": "integer", "minimum": 95, "maximum": 100}, "", "95"),
    ({"enum": ["a very long value", "short"]}, "", '"short"'),
    ({"enum": ["a very long value", "short"]}, '"a', ' very long value"'),
    (TEN_STRINGS, "", json.dumps({f"field{idx}": "" for idx in range(10)})),
    (TEN_STRINGS, '{"field0": "abc', '", ' + json.dumps({f"field{idx}": "" for idx in range(1, 10)})[1:]),
    (LIST, "", '{"v": 0, "next": null}'),
    (LIST, '{"v": 1, "next": {"v": 2, "next": {"v', '": 0, "next": null}}}'),
    (BRANCHES, "", '{"kind": "bbb"}'),
    ({"type": "object", "properties": {"x": {"exclusiveMinimum": 0, "type": "number"}}, "required": ["x"]}, "", '{"x": 9}'),
    ({"type": "string", "minLength": 3}, '"a', None),
    ({"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, '"A', None),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_path("smollm2"))


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> GrammarVocabulary:
    return GrammarVocabulary(tokenizer, tokenizer.vocab_size)


@pytest.fixture(scope="module")
def backend(vocabulary: GrammarVocabulary) -> LlguidanceBackend:
    return LlguidanceBackend(vocabulary)


def state_after(
    backend: LlguidanceBackend, tokenizer: Tokenizer, kind: GrammarKind, source: Any, text: str
) -> GrammarState:
    spec = GrammarSpec(kind, json.dumps(source) if kind == "json_schema" else source)
    state = backend.compile(spec).new_state()
    tokens = tokenizer.encode(text) if text else []
    assert state.try_accept(tokens) == len(tokens)
    return state


def check(state: GrammarState, vocabulary: GrammarVocabulary, max_tokens: int = 200) -> list[int]:
    ending = shortest_ending(state, vocabulary, max_tokens)
    assert ending is not None
    assert shortest_ending(state, vocabulary, len(ending)) == ending, "the state is not changed"
    if ending:
        assert shortest_ending(state, vocabulary, len(ending) - 1) is None
    assert state.try_accept(ending) == len(ending)
    assert state.is_accepting
    return ending


@pytest.mark.parametrize(("schema", "begun", "expected"), ENDINGS)
def test_json_is_closed_with_the_least(
    schema: Any, begun: str, expected: str | None, backend: LlguidanceBackend, tokenizer: Tokenizer,
    vocabulary: GrammarVocabulary,
) -> None:  # fmt: skip
    ending = check(state_after(backend, tokenizer, "json_schema", schema, begun), vocabulary)
    if expected is not None:
        spelled = b"".join(vocabulary.token_bytes[token_id] for token_id in ending).decode()
        assert len(spelled) == len(expected)
        assert json.loads(begun + spelled) is not None
        assert len(ending) <= len(tokenizer.encode(expected, is_text_start=False))


@pytest.mark.parametrize(
    ("kind", "source", "num_bytes"),
    [
        ("regex", r"[a-z]+@[a-z]+\.com", 7),
        ("regex", "(foo|barbarbar) (x{3}|y)", 5),
        ("regex", "(ab|ac)+d", 3),
        ("regex", "[0-9]+x", 2),
        ("choices", ("yes please", "no thanks", "no"), 2),
    ],
)
def test_other_grammars_end_too(
    kind: GrammarKind, source: Any, num_bytes: int, backend: LlguidanceBackend, tokenizer: Tokenizer,
    vocabulary: GrammarVocabulary,
) -> None:  # fmt: skip
    ending = check(state_after(backend, tokenizer, kind, source, ""), vocabulary)
    assert sum(len(vocabulary.token_bytes[token_id]) for token_id in ending) == num_bytes


def test_a_complete_text_needs_nothing(
    backend: LlguidanceBackend, tokenizer: Tokenizer, vocabulary: GrammarVocabulary
) -> None:
    state = state_after(backend, tokenizer, "regex", "a+", "a")
    assert shortest_ending(state, vocabulary, 0) == []


def test_no_ending_is_longer_than_allowed(
    backend: LlguidanceBackend, tokenizer: Tokenizer, vocabulary: GrammarVocabulary
) -> None:
    state = state_after(backend, tokenizer, "json_schema", TEN_STRINGS, "")
    assert shortest_ending(state, vocabulary, 10) is None
    assert shortest_ending(state, vocabulary, 0) is None
