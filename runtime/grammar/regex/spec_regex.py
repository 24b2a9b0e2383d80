"""The regex of a specification: a pattern or choices, behind the literal prefix, in characters that can be spelled."""

from __future__ import annotations

from ....grammar_spec import GrammarSpec
from ..errors import GrammarError, GrammarVocabularyError
from .analysis import is_empty
from .char_sets import CharSet
from .parser import choices_regex, parse_regex
from .syntax import (
    NOTHING,
    Alternation,
    Concat,
    Literal,
    OneOf,
    Regex,
    Repeat,
    alternation,
    concat,
    fold,
    one_of,
    repeat,
)


def spec_regex(spec: GrammarSpec, spellable: CharSet) -> Regex:
    """The texts that a specification of kind regex or choices allows, prefix included. Never empty.

    Args:
        spellable: the characters that the vocabulary can spell; texts with others are left out.

    Raises:
        GrammarError: it cannot be enforced, or allows no text at all. A GrammarVocabularyError if it allows none that
            can be spelled.
    """
    if spec.kind == "regex":
        assert isinstance(spec.source, str)
        regex = parse_regex(spec.source)
        if is_empty(regex):
            raise GrammarError(f"regex {spec.source!r} matches no text at all")
    else:
        assert spec.kind == "choices"
        regex = choices_regex(spec.source)
        _check_choices(spec, spellable)
    regex = restricted(regex, spellable)
    if is_empty(regex):
        raise GrammarVocabularyError(
            f"{spec.kind} cannot be enforced: this model's vocabulary cannot spell any text that it allows"
        )
    return concat([Literal(spec.prefix), regex]) if spec.prefix else regex


def restricted(regex: Regex, chars: CharSet) -> Regex:
    """The members that consist of some characters only."""

    def combine(node: Regex, below: list[Regex]) -> Regex:
        match node:
            case Literal(text):
                return node if all(char in chars for char in text) else NOTHING
            case OneOf(own):
                return one_of(own & chars)
            case Concat():
                return concat(below)
            case Alternation():
                return alternation(below)
            case Repeat(_, min_count, max_count):
                return repeat(below[0], min_count, max_count)

    return fold(regex, combine)[id(regex)]


def _check_choices(spec: GrammarSpec, spellable: CharSet) -> None:
    """A choice that can never be made would be missed silently."""
    for choice in spec.source:
        missing = [char for char in choice if char not in spellable]
        if missing:
            raise GrammarVocabularyError(
                f"choice {choice!r} cannot be generated: this model's vocabulary cannot spell {missing[0]!r}"
            )
