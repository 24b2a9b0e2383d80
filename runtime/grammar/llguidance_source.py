"""A specification as llguidance takes it: a regex, a JSON schema or a grammar, behind its literal prefix."""

from __future__ import annotations

import json
import re

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from ...grammar_spec import GrammarSpec
from .errors import GrammarError
from .json_schema import json_schema_grammar
from .json_schema.terminals import literal
from .regex.char_sets import CharSet
from .regex.emit import rust_text
from .regex.spec_regex import spec_regex, spellable_choices
from .tagged_text import tagged_text_lark

MAX_RULES = 1_000
"""Longer chains of rules exhaust the stack of llguidance."""

_RULE = re.compile(r"^\s*[?!]?[A-Za-z_][\w.-]*\s*(?:::=|:)", re.MULTILINE)
_DIRECTIVE = re.compile(r"(?:^|[\s:|(])%(json|llguidance)\b")
_GBNF_RULE = re.compile(r"^\s*[A-Za-z][\w-]*\s*::=", re.MULTILINE)
_LARK_START = re.compile(r"^\??start\b(?=[^:\n]*:)", re.MULTILINE)


def llguidance_source(spec: GrammarSpec, spellable: CharSet) -> str:
    """The grammar in llguidance's own form.

    Args:
        spellable: the characters that the vocabulary can spell.

    Raises:
        GrammarError: it cannot be written so.
    """
    if spec.kind == "choices":
        spellable_choices(spec, spellable)  # or they are refused
        texts = " | ".join(literal(spec.prefix + choice) for choice in spec.source)
        return LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: {texts}\n")
    if spec.kind == "regex":
        return LLMatcher.grammar_from_regex(rust_text(spec_regex(spec, spellable)))
    if spec.kind == "json_schema":
        return json_schema_grammar(spec, spellable)
    if spec.kind == "tagged_text":
        return _tagged_text(spec, spellable)
    assert isinstance(spec.source, str)
    assert not spec.prefix, "the boundary before a text of such a grammar is not healed"
    return _ebnf(spec.source)


def _tagged_text(spec: GrammarSpec, spellable: CharSet) -> str:
    assert isinstance(spec.source, str)
    assert not spec.prefix, "the boundary before free text is not healed"
    grammars = tagged_text_lark(spec.source, spellable)
    return json.dumps({"grammars": [{"name": name, "lark_grammar": lark} for name, lark in grammars.items()]})


def _ebnf(source: str) -> str:
    num_rules = len(_RULE.findall(source))
    if num_rules > MAX_RULES:
        raise GrammarError(f"ebnf has {num_rules:,} rules, at most {MAX_RULES:,} are allowed")
    directive = _DIRECTIVE.search(source)
    if directive is not None:
        hint = "give the schema as json_schema" if directive[1] == "json" else "leave it out"
        raise GrammarError(f"ebnf may not use %{directive[1]}, with which it would not be enforced exactly: {hint}")
    if _GBNF_RULE.search(source):
        try:
            source = gbnf_to_lark(source)
        except Exception as error:  # the converter's own error type is not a public name
            raise GrammarError(f"ebnf cannot be read as GBNF: {error}") from error
    if not _LARK_START.search(source):
        raise GrammarError('ebnf has no rule to begin with: name it "root" in GBNF ("root ::= ...") or "start" in Lark')
    return LLMatcher.grammar_from_lark(source)
