"""From a specification to a grammar that llguidance compiles."""

from __future__ import annotations

from functools import lru_cache

import llguidance

from ....grammar_spec import GrammarSpec, JsonWhitespace
from ..errors import UnsupportedSchemaError
from ..regex.char_sets import ALL_CHARS, CharSet
from .document import SchemaDocument
from .graph import SchemaGraph
from .lark_writer import LarkWriter
from .terminals import CannotEnforceError, TextTerminals


def json_schema_grammar(spec: GrammarSpec, spellable: CharSet) -> str:
    """A grammar for `LLMatcher`, of the prefix followed by JSON that satisfies the schema.

    Args:
        spellable: the characters that the vocabulary can spell; strings have no others.

    Cost: 1 to 30 ms.

    Raises:
        UnsupportedSchemaError: the schema cannot be enforced, contradicts itself or is too large.
    """
    assert spec.kind == "json_schema"
    assert isinstance(spec.source, str)
    lark = json_schema_lark(spec.source, spec.json_whitespace, spec.prefix, spellable)
    return str(llguidance.LLMatcher.grammar_from_lark(lark))


def json_schema_lark(
    schema_text: str, whitespace: JsonWhitespace = "fixed", prefix: str = "", spellable: CharSet = ALL_CHARS
) -> str:
    """The same as text in llguidance's Lark dialect."""
    try:
        graph = SchemaGraph(SchemaDocument(schema_text), TextTerminals(spellable), is_empty_terminal)
        return LarkWriter(graph, whitespace).write(prefix)
    except CannotEnforceError as error:
        raise UnsupportedSchemaError("", error.keyword, str(error)) from error


@lru_cache(maxsize=4096)
def is_empty_terminal(expression: str) -> bool:
    """Whether no text matches an expression. One that is too complex to tell counts as empty, so it is never used."""
    grammar = llguidance.LLMatcher.grammar_from_lark(f"start: T\nT: {expression}\n")
    matcher = llguidance.LLMatcher(_byte_tokenizer(), grammar, log_level=0)
    if matcher.is_error():
        return True
    is_nothing = not any(matcher.compute_bitmask())
    return is_nothing or bool(matcher.is_error())


@lru_cache(maxsize=1)
def _byte_tokenizer() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer("byte")
