"""What the engine needs of a grammar: which tokens may come next, which must, and whether the text may end here.

A `Grammar` is compiled once for a vocabulary and shared by requests; a `GrammarState` is one sequence's place in it.
Both speak of ordinary tokens only: special tokens are never part of a text, and when a text may end is for the engine
to say (`is_accepting`), which knows the stop tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class GrammarState(Protocol):
    """A place in a grammar: the tokens accepted so far. Not thread-safe."""

    def fork(self) -> GrammarState:
        """A state of its own at the same place."""
        ...

    def try_accept(self, token_ids: Sequence[int]) -> int:
        """Advance over as many leading tokens as the grammar allows. Returns their number. Never raises for a token."""
        ...

    def allows(self, token_id: int) -> bool:
        """Whether `try_accept` would accept it. Changes nothing, and costs much less than a mask."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens accepted."""
        ...

    def fill_mask(self, words: NDArray[np.int32]) -> None:
        """Write the tokens that may come next: token i is bit i % 32 of words[i // 32].

        No bit is set for a special token or one beyond the vocabulary. All bits are clear where the text must end here,
        and where it can neither end nor go on: a dead end, in the vocabulary or in the grammar.

        Args:
            words: int32 [ceil(vocab_size / 32)], overwritten.
        """
        ...

    def forced_tokens(self) -> list[int]:
        """Tokens that every continuation of the text begins with, spelled as the tokenizer would; [] at a choice.

        Where the text may end here nothing is forced.
        """
        ...

    @property
    def error(self) -> str | None:
        """Which limit of the backend was hit, if one was: then nothing is allowed any more."""
        ...

    @property
    def is_accepting(self) -> bool:
        """The text so far is complete; it may still be allowed to go on."""
        ...

    @property
    def is_finished(self) -> bool:
        """The text so far is complete and must not go on."""
        ...


class Ending(Protocol):
    """A way to complete a text: follows its tokens, and says how it could end soon. Immutable."""

    def after(self, token_id: int) -> Ending:
        """The same after one more token, which the grammar allows."""
        ...

    def tokens(self, state: GrammarState, max_tokens: int) -> list[int] | None:
        """Tokens that complete the text; [] if it is complete.

        Args:
            state: the place in the grammar after the same tokens; not changed.

        Returns:
            None if there are none within `max_tokens`, or none are found.
        """
        ...


class Grammar(Protocol):
    """A compiled grammar. Immutable; used by many requests and threads at once."""

    @property
    def num_bytes(self) -> int:
        """What keeping it costs in memory, roughly."""
        ...

    def new_state(self) -> GrammarState:
        """The place before the first token."""
        ...

    def ending(self) -> Ending:
        """The way to complete a text before its first token."""
        ...
