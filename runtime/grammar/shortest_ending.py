from __future__ import annotations

from .interface import GrammarState
from .vocabulary import GrammarVocabulary


def shortest_ending(state: GrammarState, vocabulary: GrammarVocabulary, max_tokens: int) -> list[int] | None:
    raise NotImplementedError
