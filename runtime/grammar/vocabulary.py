"""GrammarVocabulary: what grammars need to know of a tokenizer and the model's logits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .regex.char_sets import CharSet
from .spellable import spellable_chars


class TextTokenizer(Protocol):
    """What grammars need of a tokenizer."""

    bos_token_id: int | None
    eos_token_ids: frozenset[int]

    def is_special(self, token_id: int) -> bool: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def encode(self, text: str, *, is_text_start: bool = True) -> list[int]: ...


@dataclass(frozen=True)
class GrammarVocabulary:
    """A model's vocabulary.

    Attributes:
        vocab_size: width of the logits; at least the number of tokens, and ids beyond those have no text.
    """

    tokenizer: TextTokenizer
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

    @cached_property
    def spellable_chars(self) -> CharSet:
        """The characters that its tokens can spell."""
        return spellable_chars(self.token_bytes)

    def can_extend(self, spelling: bytes) -> bool:
        """Whether some token spells this and more."""
        idx = bisect_right(self._sorted_spellings, spelling)
        return idx < len(self._sorted_spellings) and self._sorted_spellings[idx].startswith(spelling)

    @cached_property
    def _sorted_spellings(self) -> list[bytes]:
        return sorted(set(self.token_bytes))

    @property
    def num_words(self) -> int:
        return -(-self.vocab_size // 32)


def token_words(token_ids: Iterable[int], vocab_size: int) -> NDArray[np.int32]:
    """A set of tokens as int32 [ceil(vocab_size / 32)]: token i is bit i % 32 of word i // 32.

    Ids beyond the vocabulary are left out.
    """
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[[token_id for token_id in token_ids if token_id < vocab_size]] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
