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
    regex = _pattern(spec, spellable) if spec.kind == "regex" else spellable_choices(spec, spellable)
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


def spellable_choices(spec: GrammarSpec, spellable: CharSet) -> Regex:
    """The choices, prefix left out. All of them can be made: one that could not be would be missed silently.

    Raises:
        GrammarError: too many, too long, or with a character that UTF-8 cannot spell; a GrammarVocabularyError if the
            vocabulary cannot.
    """
    assert spec.kind == "choices"
    regex = choices_regex(spec.source)
    chars = CharSet.of_text("".join(spec.source))
    missing = chars - spellable
    if missing:
        char = chr(missing.ranges[0][0])
        choice = next(choice for choice in spec.source if char in choice)
        raise GrammarVocabularyError(
            f"choice {choice!r} cannot be generated: this model's vocabulary cannot spell {char!r}"
        )
    return regex


def _pattern(spec: GrammarSpec, spellable: CharSet) -> Regex:
    assert isinstance(spec.source, str)
    regex = parse_regex(spec.source)
    if is_empty(regex):
        raise GrammarError(f"regex {spec.source!r} matches no text at all")
    regex = restricted(regex, spellable)
    if is_empty(regex):
        raise GrammarVocabularyError(
            "regex cannot be enforced: this model's vocabulary cannot spell any text that it allows"
        )
    return regex
