"""ConstrainedText: a sequence's constraint, as the engine uses it: its place in a grammar and what may end it.

The grammar knows texts; this adds the stop tokens (allowed only where the text is complete), tokens that need no
forward pass because they are forced (jump-forward; SGLang, Zheng et al. 2024, section 4, but in the tokenizer's own
spelling, so that nothing computed before ever changes), and a way to end within a budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from .interface import Grammar, GrammarState
from .shortest_ending import shortest_ending
from .vocabulary import GrammarVocabulary, token_words


class ConstrainedText:
    """What a sequence may generate next.

    Args:
        stop_token_ids: end the text where it is complete.
        eos_token_ids: end it where it is complete and no other token is allowed.
        is_jumping: forced tokens are appended without a forward pass.
        closes: the text is steered so that it is complete within its budget.
    """

    def __init__(
        self,
        grammar: Grammar,
        vocabulary: GrammarVocabulary,
        stop_token_ids: Iterable[int],
        eos_token_ids: Iterable[int],
        *,
        is_jumping: bool = True,
        closes: bool = False,
    ) -> None:
        self._grammar = grammar
        self._vocabulary = vocabulary
        self._stop_token_ids = frozenset(stop_token_ids)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._is_jumping = is_jumping
        self._closes = closes
        self._state: GrammarState = grammar.new_state()
        self._ending: list[int] | None = None  # tokens that would complete the text, where they are known
        self._ending_after: list[int] | None = None  # the same after the token that was steered last
        self._words = np.empty(vocabulary.num_words, dtype=np.int32)

    def fork(self) -> ConstrainedText:
        """The same place for a sequence of its own."""
        copy = ConstrainedText(
            self._grammar,
            self._vocabulary,
            self._stop_token_ids,
            self._eos_token_ids,
            is_jumping=self._is_jumping,
            closes=self._closes,
        )
        copy._state = self._state.fork()
        copy._ending = self._ending
        return copy

    @property
    def is_complete(self) -> bool:
        """The text so far satisfies the grammar."""
        return self._state.is_accepting

    @property
    def is_finished(self) -> bool:
        """It does, and must not go on."""
        return self._state.is_finished

    def allowed(self, *, may_stop: bool = True) -> Tensor | None:
        """The tokens that may come next, as `SamplingRow.allowed` takes them; None at a dead end.

        Args:
            may_stop: stop tokens are among them where the text is complete; without it only if nothing else is.

        The tensor is overwritten by the next call.
        """
        words, vocab_size = self._words, self._vocabulary.vocab_size
        self._state.fill_mask(words)
        if self._state.is_accepting:
            stop_words = token_words(self._stop_token_ids, vocab_size)
            if may_stop:
                words |= stop_words
            elif (words & ~stop_words).any():
                words &= ~stop_words
            if not words.any():
                words |= token_words(self._stop_token_ids | self._eos_token_ids, vocab_size)
        return torch.from_numpy(words) if words.any() else None

    def ends_with(self, token_id: int) -> bool:
        """Whether this token, coming next, ends the text and is no part of it."""
        return self._state.is_accepting and (token_id in self._stop_token_ids or token_id in self._eos_token_ids)

    def start(self, max_tokens: int) -> list[int]:
        """The forced tokens that the text begins with, at most `max_tokens`; they are accepted."""
        return self._jump(max_tokens)

    def advance(self, token_id: int, max_tokens: int) -> list[int]:
        """Accept a token that `allowed` allows and that is no stop token.

        Returns:
            The forced tokens after it, at most `max_tokens`; they are accepted too.
        """
        num_accepted = self._state.try_accept((token_id,))
        assert num_accepted == 1, f"token {token_id} is not allowed here"
        self._ending, self._ending_after = self._ending_after, None
        return self._jump(max_tokens)

    def steer(self, token_id: int, max_tokens: int) -> int:
        """The token itself, or the first one of a short ending if the text could not end in time after it.

        Args:
            max_tokens: how many tokens there may still be, this one included.
        """
        if not self._closes or self.ends_with(token_id):
            return token_id
        after = self._state.fork()
        after.try_accept((token_id,))
        self._ending_after = [] if after.is_accepting else shortest_ending(after, self._vocabulary, max_tokens - 1)
        if self._ending_after is not None:
            return token_id
        ending = self._ending
        if ending is None:
            ending = shortest_ending(self._state, self._vocabulary, max_tokens)
        if ending is None or len(ending) > max_tokens:  # there was none in time to begin with
            return token_id
        if not ending:
            return min(self._stop_token_ids or self._eos_token_ids)
        self._ending_after = ending[1:]
        return ending[0]

    def is_member(self, token_ids: Sequence[int]) -> bool:
        """Whether these tokens, from the beginning, spell a complete text."""
        state = self._grammar.new_state()
        return state.try_accept(token_ids) == len(token_ids) and state.is_accepting

    def _jump(self, max_tokens: int) -> list[int]:
        if not self._is_jumping or max_tokens <= 0:
            return []
        forced = self._state.forced_tokens()[:max_tokens]
        num_accepted = self._state.try_accept(forced)
        assert num_accepted == len(forced), "a forced token is always allowed"
        if self._ending is not None:
            is_on_the_way = self._ending[: len(forced)] == forced
            self._ending = self._ending[len(forced) :] if is_on_the_way else None
        return forced
