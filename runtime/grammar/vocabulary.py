"""GrammarVocabulary: what grammars need to know of a tokenizer and the model's logits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..tokenizer import Tokenizer


@dataclass(frozen=True)
class GrammarVocabulary:
    """A model's vocabulary.

    Attributes:
        vocab_size: width of the logits; at least the number of tokens, and ids beyond those have no text.
    """

    tokenizer: Tokenizer
    vocab_size: int

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """What each id spells, [vocab_size]; empty for special tokens and for ids no token has."""
        return tuple(
            b"" if self.tokenizer.is_special(token_id) else self.tokenizer.token_bytes(token_id)
            for token_id in range(self.vocab_size)
        )

    @cached_property
    def text_token_words(self) -> NDArray[np.int32]:
        """The tokens that spell some text, as int32 [ceil(vocab_size / 32)] words of bits."""
        return token_words(
            [token_id for token_id, spelling in enumerate(self.token_bytes) if spelling], self.vocab_size
        )

    @property
    def num_words(self) -> int:
        return -(-self.vocab_size // 32)


def token_words(token_ids: list[int], vocab_size: int) -> NDArray[np.int32]:
    """A set of tokens as int32 [ceil(vocab_size / 32)]: token i is bit i % 32 of word i // 32."""
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[token_ids] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
