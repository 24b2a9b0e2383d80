"""Constraints that cannot be enforced are refused when they are submitted, and nothing is queued."""

from __future__ import annotations

import pytest

from ramet.runtime.errors import InvalidRequestError
from ramet.runtime.grammar.errors import GrammarError

PROMPT = [3, 1, 4, 1, 5]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": r"(?=a)b"}, "look"),
        ({"regex": r"a[^\s\S]"}, "no text"),
        ({"regex": "☃"}, "vocabulary"),
        ({"ebnf": "start: x"}, "unknown name"),
        ({"choices": ["a", "b"], "grammar_backend": "none"}, "llguidance"),
    ],
    ids=str,
)
def test_what_cannot_be_enforced_is_refused_and_nothing_is_queued(make_engine, request_of, fields, message):
    engine = make_engine()
    with pytest.raises(GrammarError, match=message) as caught:
        engine.add_request(request_of("a", PROMPT, **fields))
    assert isinstance(caught.value, InvalidRequestError)
    assert not engine.has_work


@pytest.mark.parametrize(
    ("ebnf", "message"),
    [
        ('start: "a" start', "no text was found"),
        ('root ::= "a" root', "no text was found"),
        ('root ::= root "a"', "no text"),
        ('%llguidance {"allow_invalid_utf8":true}\nstart: "a"', "%llguidance"),
        ('start: %json {"type": "object"}', "json_schema"),
        ("start: r0\n" + "\n".join(f"r{idx}: r{idx + 1}" for idx in range(3000)) + '\nr3000: "a"', "3,002 rules"),
        ("start: /a(?=b)/", "look-around"),
        ("hello", "start"),
    ],
)
def test_a_grammar_that_cannot_be_enforced_is_refused(make_engine, request_of, ebnf, message):
    with pytest.raises(GrammarError, match=message):
        make_engine().add_request(request_of("a", PROMPT, ebnf=ebnf))
