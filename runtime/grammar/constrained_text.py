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

from .interface import Ending, Grammar, GrammarState
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
        self._state: GrammarState = grammar.new_state()
        self._ending: Ending | None = grammar.ending() if closes else None
        self._known_ending: list[int] | None = None  # tokens that would complete the text, where they are known
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
        )
        copy._state = self._state.fork()
        copy._ending = self._ending
        copy._known_ending = self._known_ending
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

    @property
    def can_ask_by_token(self) -> bool:
        """`allowed` has just the tokens that `allows` is true for.

        Where a text is forced, a mask has the tokenizer's own spelling only; it is not when forced tokens are appended.
        """
        return self._is_jumping

    def allows(self, token_id: int, *, may_stop: bool) -> bool:
        """Whether one token is allowed, without a mask."""
        if token_id in self._stop_token_ids and self._state.is_accepting:
            return may_stop
        return self._state.allows(token_id)

    def would_accept(self, token_id: int) -> bool:
        """Whether `advance` would accept it: tried on a fork."""
        return self._state.fork().try_accept((token_id,)) == 1

    def ends_with(self, token_id: int) -> bool:
        """Whether this token, coming next, ends the text and is no part of it."""
        return self._state.is_accepting and (token_id in self._stop_token_ids or token_id in self._eos_token_ids)

    def start(self, max_tokens: int) -> list[int]:
        """The forced tokens that the text begins with, at most `max_tokens`; they are accepted."""
        if self._ending is not None:
            self._known_ending = self._ending.tokens(self._state, max_tokens)
        return self._jump(max_tokens)

    def advance(self, token_id: int, max_tokens: int) -> list[int] | None:
        """Accept a token that `allowed` allows and that is no stop token.

        Returns:
            The forced tokens after it, at most `max_tokens`; they are accepted too. None if the token is not accepted,
            because a limit of the grammar's backend was hit (`dead_end` tells).
        """
        if self._accept([token_id]) == 0:
            return None
        self._known_ending, self._ending_after = self._ending_after, None
        return self._jump(max_tokens)

    def steer(self, token_id: int, max_tokens: int) -> int:
        """The token itself, or the first one of a short ending if the text could not end in time after it.

        Args:
            max_tokens: how many tokens there may still be, this one included.
        """
        if self._ending is None or self.ends_with(token_id):
            return token_id
        after = self._state.fork()
        after.try_accept((token_id,))
        is_end = after.is_accepting
        self._ending_after = [] if is_end else self._ending.after(token_id).tokens(after, max_tokens - 1)
        if self._ending_after is not None:
            return token_id
        ending = self._known_ending
        if ending is None:
            ending = self._ending.tokens(self._state, max_tokens)
        if ending is None or len(ending) > max_tokens:  # there was none in time to begin with
            return token_id
        if not ending:
            return min(self._stop_token_ids or self._eos_token_ids)
        self._ending_after = ending[1:]
        return ending[0]

    @property
    def dead_end(self) -> str:
        """Why the text can neither end nor go on, where that is so."""
        if self._state.error is not None:
            return f"its constraint is too complex to go on with: {self._state.error}"
        return (
            "its constraint is at a dead end: the text is not complete, and no token of this vocabulary may come next"
        )

    def is_member(self, token_ids: Sequence[int]) -> bool:
        """Whether these tokens, from the beginning, spell a complete text."""
        state = self._grammar.new_state()
        return state.try_accept(token_ids) == len(token_ids) and state.is_accepting

    def _jump(self, max_tokens: int) -> list[int]:
        if not self._is_jumping or max_tokens <= 0:
            return []
        forced = self._state.forced_tokens()[:max_tokens]
        if forced and self._ending is not None and not self._can_end_behind(forced, max_tokens - len(forced)):
            return []
        num_accepted = self._accept(forced)
        return forced[:num_accepted]

    def _can_end_behind(self, forced: list[int], max_tokens: int) -> bool:
        """Whether the text could end in time after some forced tokens; the known ending may spell them in fewer.

        Mutates the known ending, which is then the one after them.
        """
        assert self._ending is not None
        known = self._known_ending
        if known is not None and known[: len(forced)] == forced:
            self._known_ending = known[len(forced) :]
            return True
        after, ending = self._state.fork(), self._ending
        after.try_accept(forced)
        for token_id in forced:
            ending = ending.after(token_id)
        ending_behind = ending.tokens(after, max_tokens)
        if ending_behind is None and known is not None:
            return False
        self._known_ending = ending_behind
        return True

    def _accept(self, token_ids: list[int]) -> int:
        num_accepted = self._state.try_accept(token_ids)
        if self._ending is not None:
            for token_id in token_ids[:num_accepted]:
                self._ending = self._ending.after(token_id)
        return num_accepted
