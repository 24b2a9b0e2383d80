"""How a text can be completed soon: exactly for regexes and choices, by a search for all other grammars."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...grammar_spec import GrammarSpec
from .interface import Ending, GrammarState
from .regex.spec_regex import spec_regex
from .regex_automaton import Beginning, RegexAutomaton
from .shortest_ending import MAX_TOKEN_BYTES, shortest_ending
from .vocabulary import GrammarVocabulary

_MANY_CHOICES = 2_000


def ending_of(spec: GrammarSpec, vocabulary: GrammarVocabulary) -> Ending:
    """The way to complete a text of a grammar that has been compiled, before its first token."""
    if spec.kind not in ("regex", "choices"):
        return SearchedEnding(vocabulary)
    automaton = RegexAutomaton(spec_regex(spec, vocabulary.spellable_chars), vocabulary.spellable_chars)
    start = automaton.start()
    assert start is not None, "a regex without members is refused"
    texts = spec.source if isinstance(spec.source, tuple) and len(spec.source) <= _MANY_CHOICES else ()
    return RegexEnding(automaton, vocabulary, start, tuple((spec.prefix + text).encode() for text in texts))


@dataclass(frozen=True, slots=True)
class SearchedEnding:
    """Tries ways out of the state (`shortest_ending`)."""

    vocabulary: GrammarVocabulary

    def after(self, token_id: int) -> SearchedEnding:
        return self

    def tokens(self, state: GrammarState, max_tokens: int) -> list[int] | None:
        return shortest_ending(state, self.vocabulary, max_tokens, is_any_enough=True)


@dataclass(frozen=True, slots=True)
class RegexEnding:
    """Asks the automaton of a regex for the fewest bytes, and of a few choices for each one's rest.

    Attributes:
        rests: what is left of each choice that the text may still become; empty for a regex.
    """

    automaton: RegexAutomaton
    vocabulary: GrammarVocabulary
    beginning: Beginning
    rests: tuple[bytes, ...] = ()

    def after(self, token_id: int) -> RegexEnding:
        spelling = self.vocabulary.token_bytes[token_id]
        beginning = self.automaton.advance(self.beginning, spelling)
        assert beginning is not None, f"token {token_id} is not allowed here"
        rests = tuple(rest[len(spelling) :] for rest in self.rests if rest.startswith(spelling))
        return replace(self, beginning=beginning, rests=rests)

    def tokens(self, state: GrammarState, max_tokens: int) -> list[int] | None:
        shortest = self.automaton.shortest_ending(self.beginning)
        candidates = self.rests or (() if shortest is None else (shortest,))
        ways = [way for data in candidates if (way := self._tokens_of(state, data)) is not None]
        best = min(ways, key=len, default=None)
        return best if best is not None and len(best) <= max_tokens else None

    def _tokens_of(self, state: GrammarState, data: bytes) -> list[int] | None:
        tokens = self.vocabulary.fewest_tokens(data, MAX_TOKEN_BYTES)
        if tokens is None or state.fork().try_accept(tokens) != len(tokens):
            return None
        return tokens
