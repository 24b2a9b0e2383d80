"""GrammarBackend: a way to compile grammars for one vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...grammar_spec import GrammarSpec
from .interface import Grammar
from .vocabulary import GrammarVocabulary


class GrammarBackend(Protocol):
    """Compiles grammars. Safe to use from several threads."""

    def compile(self, spec: GrammarSpec) -> Grammar:
        """Compile a grammar, prefix included. May take long; never called on the engine's thread.

        Raises:
            GrammarError: it cannot be enforced exactly, is empty, or is too large.
        """
        ...


BackendFactory = Callable[[GrammarVocabulary], GrammarBackend]
"""Makes a backend ready to compile; may take a second."""
