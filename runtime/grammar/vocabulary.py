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

    @cached_property
    def token_of_spelling(self) -> dict[bytes, int]:
        """The first token that spells some bytes."""
        return {spelling: token_id for token_id, spelling in reversed(list(enumerate(self.token_bytes))) if spelling}

    def single_bytes_in(self, words: NDArray[np.int32]) -> bytes:
        """The bytes that are tokens of a set by themselves, in order. The set is as `token_words` makes it."""
        token_ids, spelled = self._single_bytes
        return bytes(spelled[(words[token_ids >> 5] >> (token_ids & 31)) & 1 == 1])

    def shortest_token_in(self, words: NDArray[np.int32]) -> int:
        """The token of a set, which is not empty, that spells the fewest bytes."""
        is_in = np.unpackbits(words.astype("<i4").view(np.uint8), bitorder="little")[: self.vocab_size]
        return min(map(int, np.flatnonzero(is_in)), key=lambda token_id: len(self.token_bytes[token_id]))

    def fewest_tokens(self, data: bytes, max_token_bytes: int) -> list[int] | None:
        """The fewest tokens that spell some bytes, none longer than the limit; None if there are none."""
        token_of = self.token_of_spelling
        # By position: the fewest tokens up to it, and where the last one begins.
        best: list[tuple[int, int] | None] = [(0, 0), *[None] * len(data)]
        for start in range(len(data)):
            reached = best[start]
            if reached is None:
                continue
            for end in range(start + 1, min(start + max_token_bytes, len(data)) + 1):
                known = best[end]
                if (known is None or reached[0] + 1 < known[0]) and data[start:end] in token_of:
                    best[end] = reached[0] + 1, start
        tokens: list[int] = []
        end = len(data)
        while end:
            step = best[end]
            if step is None:
                return None
            tokens.append(token_of[data[step[1] : end]])
            end = step[1]
        return tokens[::-1]

    @cached_property
    def _single_bytes(self) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """The tokens of one byte each, and those bytes."""
        pairs = sorted(
            (spelling[0], token_id) for spelling, token_id in self.token_of_spelling.items() if len(spelling) == 1
        )
        token_ids = np.array([token_id for _, token_id in pairs], dtype=np.int32)
        return token_ids, np.array([byte for byte, _ in pairs], dtype=np.uint8)

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
