"""GrammarBackend: a way to compile grammars."""

from __future__ import annotations

from typing import Protocol

from ...grammar_spec import GrammarSpec
from .interface import Grammar
from .vocabulary import GrammarVocabulary


class GrammarBackend(Protocol):
    """A way to compile grammars."""

    @property
    def name(self) -> str: ...

    def compile(self, spec: GrammarSpec, vocabulary: GrammarVocabulary) -> Grammar:
        """Compile a grammar, prefix included. May take long; never called on the engine's thread.

        Raises:
            GrammarError: it cannot be enforced exactly, is empty, or is too large.
        """
        ...
