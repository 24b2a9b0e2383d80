"""Earlier drafts are read as what they are or refused; numbers that readers cannot tell apart; every character."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.runtime.grammar.errors import UnsupportedSchemaError

DRAFT_7, DRAFT_2019 = "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema"


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"$schema": DRAFT_7, "type": "array", "prefixItems": [{"type": "integer"}]}, "prefixItems"),
        ({"$schema": DRAFT_2019, "type": "array", "prefixItems": [{"type": "integer"}]}, "prefixItems"),
        (
            {
                "$schema": DRAFT_7,
                "definitions": {"a": {"minimum": 3}},
                "type": "integer",
                "not": {"$ref": "#/definitions/a", "minimum": 7},
            },
            "minimum",
        ),
        (
            {"$schema": DRAFT_7, "type": "object", "not": {"dependentRequired": {"a": ["b"]}}},
            "dependentRequired",
        ),
    ],
    ids=str,
)
def test_what_an_earlier_draft_reads_otherwise_is_refused(compile_schema, schema: Any, keyword: str) -> None:
    with pytest.raises(UnsupportedSchemaError) as caught:
        compile_schema(schema)
    assert caught.value.keyword == keyword


def test_the_tuples_of_an_earlier_draft_are_enforced(compile_schema) -> None:
    compiled = compile_schema(
        {"$schema": DRAFT_7, "type": "array", "items": [{"type": "integer"}], "additionalItems": False}
    )
    assert compiled.accepts("[5]")
    assert not compiled.accepts('["a"]')
    assert not compiled.accepts("[5, 6]")


@pytest.mark.parametrize(
    "schema", ['{"type": "number", "exclusiveMaximum": 1.0000000000000001}', '{"const": 1e400}', '{"enum": [1e-400]}']
)
def test_numbers_that_no_double_is_are_refused(compile_schema, schema: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match="number"):
        compile_schema(schema)


@pytest.mark.parametrize("char", ["\x7f", "\x00", "\x1f", "\x80", "\u2028", "\ufeff", "\U0010ffff", '"', "\\", "/"])
def test_any_character_may_stand_in_a_schema(compile_schema, char: str) -> None:
    compiled = compile_schema({"const": f"a{char}b"})
    found = [compiled.random_text(seed) for seed in range(2)]
    assert found[0] is not None
    assert found[0] == found[1]
    assert compiled.accepts(found[0])
