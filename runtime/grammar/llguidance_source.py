"""A specification as llguidance takes it: a regex, a JSON schema or a grammar, behind its literal prefix."""

from __future__ import annotations

import json
import re

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from ...grammar_spec import GrammarSpec
from .errors import GrammarError
from .json_schema import json_schema_grammar
from .regex.char_sets import CharSet
from .regex.emit import rust_text
from .regex.spec_regex import spec_regex

_GBNF_RULE = re.compile(r"^\s*[A-Za-z][\w-]*\s*::=", re.MULTILINE)
_LARK_START = re.compile(r"^\??start\b(?=[^:\n]*:)", re.MULTILINE)


def llguidance_source(spec: GrammarSpec, spellable: CharSet) -> str:
    """The grammar in llguidance's own form.

    Args:
        spellable: the characters that the vocabulary can spell.

    Raises:
        GrammarError: it cannot be written so.
    """
    if spec.kind in ("regex", "choices"):
        return LLMatcher.grammar_from_regex(rust_text(spec_regex(spec, spellable)))
    if spec.kind == "json_schema":
        return json_schema_grammar(spec, spellable)
    assert isinstance(spec.source, str)
    return _ebnf(spec.source, spec.prefix)


def _ebnf(source: str, prefix: str) -> str:
    if _GBNF_RULE.search(source):
        try:
            source = gbnf_to_lark(source)
        except Exception as error:  # the converter's own error type is not a public name
            raise GrammarError(f"ebnf cannot be read as GBNF: {error}") from error
    if not _LARK_START.search(source):
        raise GrammarError('ebnf has no rule to begin with: name it "root" in GBNF ("root ::= ...") or "start" in Lark')
    if prefix:
        source = _LARK_START.sub(lambda match: match[0].replace("start", "start_after_prefix"), source)
        source = f"start: {lark_string(prefix)} start_after_prefix\n{source}"
    return LLMatcher.grammar_from_lark(source)


def lark_string(text: str) -> str:
    """A literal of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)
