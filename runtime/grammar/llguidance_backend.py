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

_MAX_FORCED_TOKENS = 1_000
_MAX_ENDING_TOKENS = 4_000
_LIMITS = LLParserLimits(max_items_in_row=10_000, step_max_items=100_000, verbose_errors=False)
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
        grammar = LlguidanceGrammar(self._tokenizer, source, spec, self._vocabulary)
        _try_out(grammar, spec)
        return grammar


class LlguidanceGrammar:
    """A compiled grammar: a matcher at its beginning, which states are copied from.

    Copies share a lexer. When a state drives that into one of its limits, all copies are lost, and states made from
    then on get a new one.
    """

    def __init__(self, tokenizer: LLTokenizer, source: str, spec: GrammarSpec, vocabulary: GrammarVocabulary) -> None:
        self.num_bytes = _STATE_BYTES + _BYTES_PER_SOURCE_BYTE * len(source)
        self._tokenizer = tokenizer
        self._source = source
        self._spec = spec
        self.vocabulary = vocabulary
        self._is_lexer_lost = False
        self._matcher = self._new_matcher()

    def new_state(self) -> LlguidanceState:
        if self._is_lexer_lost:
            self._matcher, self._is_lexer_lost = self._new_matcher(), False
        return LlguidanceState(self._matcher.deep_copy(), self)

    def on_error(self, message: str) -> None:
        """A state hit a limit."""
        self._is_lexer_lost |= "lexer" in message

    def ending(self) -> Ending:
        return self._ending

    @cached_property
    def _ending(self) -> Ending:
        return ending_of(self._spec, self.vocabulary)

    def _new_matcher(self) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, self._source, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise GrammarError(f"{self._spec.kind} cannot be enforced: {_summary(matcher.get_error())}")
        return matcher


class LlguidanceState:
    """A matcher. Copying one takes some 10 us, a mask some 60 us."""

    def __init__(self, matcher: LLMatcher, grammar: LlguidanceGrammar) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self._vocabulary = grammar.vocabulary

    def fork(self) -> GrammarState:
        return LlguidanceState(self._matcher.deep_copy(), self._grammar)

    def try_accept(self, token_ids: Sequence[int]) -> int:
        """See `GrammarState.try_accept`. Special tokens are never accepted, though llguidance takes its own EOS."""
        spellings = self._vocabulary.token_bytes
        text_len = next((idx for idx, token_id in enumerate(token_ids) if not spellings[token_id]), len(token_ids))
        if self._matcher.is_stopped():
            return 0
        num_accepted = self._matcher.try_consume_tokens(list(token_ids[:text_len]))
        self._report_error()
        return num_accepted

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
        if self._report_error():
            words.fill(0)

    def _report_error(self) -> bool:
        if not self._matcher.is_error():
            return False
        self._grammar.on_error(self._matcher.get_error())
        return True

    def forced_tokens(self) -> list[int]:
        if self._matcher.is_accepting():
            return []
        # On a copy: what is forced may have no end, and then the copy hits a limit and is lost.
        matcher = self._matcher.deep_copy()
        tokens = matcher.compute_ff_tokens()[:_MAX_FORCED_TOKENS]
        # Text that the vocabulary cannot spell has no tokens: what is left of it would be something else.
        num_valid = matcher.try_consume_tokens(tokens) if tokens and not matcher.is_error() else 0
        return [] if matcher.is_error() else tokens[:num_valid]

    @property
    def is_accepting(self) -> bool:
        return self._matcher.is_accepting()

    @property
    def is_finished(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> str | None:
        message = _summary(self._matcher.get_error()) if self._matcher.is_error() else ""
        return None if message in ("", "NoExtensionBias") else message  # the latter is no limit but a dead end


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
    words = np.empty_like(grammar.vocabulary.text_token_words)
    state.fill_mask(words)
    if state.error is not None:
        raise GrammarBudgetError(f"{spec.kind} is too complex: {state.error}")
    if not state.is_accepting and not words.any():
        raise GrammarVocabularyError(
            f"{spec.kind} cannot be enforced: no text satisfies it, or none that this model's vocabulary can spell"
        )
    state.forced_tokens()
    if spec.kind == "ebnf" and grammar.ending().tokens(grammar.new_state(), _MAX_ENDING_TOKENS) is None:
        raise GrammarError(
            "ebnf cannot be enforced: no text was found that satisfies it. Does every rule lead to an end, in "
            "characters that this model's vocabulary can spell?"
        )


def _summary(message: str) -> str:
    """An error of llguidance in one line."""
    return " ".join(message.replace("<non-verbose/>", "").split())[:300]
