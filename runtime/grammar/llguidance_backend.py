"""The default backend: llguidance, an Earley parser over a lazy lexer that walks the vocabulary as a trie of bytes.

It is exact for what it takes and refuses the rest, and it knows which tokens are forced, in the tokenizer's own
spelling. Its errors are states, not exceptions: a matcher in error allows nothing and never recovers, so tokens are
only ever offered with `try_consume_tokens`, and every grammar is tried once before it is handed out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from ...grammar_spec import GrammarSpec
from .endings import ending_of
from .errors import GrammarBudgetError, GrammarError, GrammarVocabularyError
from .interface import Ending, GrammarState
from .llguidance_source import llguidance_source
from .vocabulary import GrammarVocabulary

_MAX_ENDING_TOKENS = 4_000
_STATE_BYTES = 64 * 1024
_BYTES_PER_SOURCE_BYTE = 64
"""A compiled grammar takes some 40 kB, and as much again for every kB of its source, before it is used (measured)."""


class LlguidanceBackend:
    """Compiles every kind of grammar. Making one takes about half a second for a vocabulary of 50,000 tokens."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._spellable = vocabulary.spellable_chars
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Vocabulary(vocabulary)),
            n_vocab=vocabulary.vocab_size,
            eos_token=sorted(vocabulary.tokenizer.eos_token_ids),
        )
        assert self._tokenizer.is_canonical, "forced tokens would not be spelled as the tokenizer spells them"

    def compile(self, spec: GrammarSpec) -> LlguidanceGrammar:
        """See `GrammarBackend.compile`."""
        source = llguidance_source(spec, self._spellable)
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if matcher.is_error():
            raise GrammarError(f"{spec.kind} cannot be enforced: {_first_line(matcher.get_error())}")
        grammar = LlguidanceGrammar(matcher, spec, self._vocabulary, len(source))
        _try_out(grammar, spec)
        return grammar


class LlguidanceGrammar:
    """A compiled grammar: a matcher at its beginning, which states are copied from."""

    def __init__(
        self, matcher: LLMatcher, spec: GrammarSpec, vocabulary: GrammarVocabulary, num_source_chars: int
    ) -> None:
        self._matcher = matcher
        self._spec = spec
        self._vocabulary = vocabulary
        self.num_bytes = _STATE_BYTES + _BYTES_PER_SOURCE_BYTE * num_source_chars

    def new_state(self) -> LlguidanceState:
        return LlguidanceState(self._matcher.deep_copy(), self._vocabulary)

    def ending(self) -> Ending:
        return self._ending

    @cached_property
    def _ending(self) -> Ending:
        return ending_of(self._spec, self._vocabulary)


class LlguidanceState:
    """A matcher. Copying one takes some 10 us, a mask some 60 us."""

    def __init__(self, matcher: LLMatcher, vocabulary: GrammarVocabulary) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def fork(self) -> GrammarState:
        return LlguidanceState(self._matcher.deep_copy(), self._vocabulary)

    def try_accept(self, token_ids: Sequence[int]) -> int:
        """See `GrammarState.try_accept`. Special tokens are never accepted, though llguidance takes its own EOS."""
        spellings = self._vocabulary.token_bytes
        text_len = next((idx for idx, token_id in enumerate(token_ids) if not spellings[token_id]), len(token_ids))
        if self._matcher.is_stopped():
            return 0
        return self._matcher.try_consume_tokens(list(token_ids[:text_len]))

    def allows(self, token_id: int) -> bool:
        if not self._vocabulary.token_bytes[token_id] or self._matcher.is_stopped():
            return False
        return self._matcher.validate_tokens([token_id]) == 1

    def rollback(self, num_tokens: int) -> None:
        done = self._matcher.rollback(num_tokens)
        assert done, f"cannot take back {num_tokens} tokens: {self._matcher.get_error()}"

    def fill_mask(self, words: NDArray[np.int32]) -> None:
        assert words.dtype == np.int32
        assert words.shape == (self._vocabulary.num_words,)
        if self._matcher.is_stopped():
            words.fill(0)
            return
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        words &= self._vocabulary.text_token_words
        if self._matcher.is_error():
            words.fill(0)

    def forced_tokens(self) -> list[int]:
        if self._matcher.is_accepting():
            return []
        tokens = self._matcher.compute_ff_tokens()
        # Text that the vocabulary cannot spell has no tokens: what is left of it would be something else.
        return tokens[: self._matcher.validate_tokens(tokens)] if tokens else []

    @property
    def is_accepting(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def is_finished(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> str | None:
        """Why nothing is allowed any more, if a limit of the parser was hit."""
        return _first_line(self._matcher.get_error()) if self._matcher.is_error() else None


class _Vocabulary:
    """A vocabulary as llguidance reads one."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        tokenizer = vocabulary.tokenizer
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [spelling or f"<{token_id}>".encode() for token_id, spelling in enumerate(vocabulary.token_bytes)]
        self.special_token_ids = [token_id for token_id, text in enumerate(vocabulary.token_bytes) if not text]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return self._tokenizer.encode(text, is_text_start=False)


def _try_out(grammar: LlguidanceGrammar, spec: GrammarSpec) -> None:
    """The first step of a grammar shows whether it is empty, or too large for the parser's limits."""
    state = grammar.new_state()
    words = np.empty_like(grammar._vocabulary.text_token_words)
    state.fill_mask(words)
    if state.error == "NoExtensionBias":
        raise GrammarError(f"{spec.kind} cannot be enforced: no text satisfies it")
    if state.error is not None:
        raise GrammarBudgetError(f"{spec.kind} is too complex: {state.error}")
    if not state.is_accepting and not words.any():
        raise GrammarVocabularyError(
            f"{spec.kind} cannot be enforced: no token of this model's vocabulary begins a text that it allows"
        )
    state.forced_tokens()
    if spec.kind == "ebnf" and grammar.ending().tokens(grammar.new_state(), _MAX_ENDING_TOKENS) is None:
        raise GrammarError(
            "ebnf cannot be enforced: no text was found that satisfies it. Does every rule lead to an end, in characters "
            "that this model's vocabulary can spell?"
        )


def _first_line(message: str) -> str:
    return message.strip().split("\n", 1)[0]
