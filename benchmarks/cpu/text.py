"""Made-up English whose every word is one token, so that a text of N tokens is N words for every engine.

A word and the space before it are one piece to the usual pre-tokenizers, so texts may be joined without changing
the tokens of either. Only words that the model's tokenizer has whole are used (`whole_words`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

NOUNS = """
captain boat river village garden teacher letter window mountain market winter summer morning evening doctor farmer
kitchen table bridge road forest island train station song story map house door field horse bird stone fire lake ship
city street school child friend brother sister mother father king queen soldier hunter ocean storm cloud wind valley
tower castle lamp mirror clock basket bread apple paper book picture machine engine wheel box key coin hat coat shoe
glass cup knife rope ladder wall roof tree leaf flower seed
"""
VERBS = """
found watched carried followed remembered opened closed crossed built painted saw heard left lost sold bought kept moved
held pulled pushed reached passed met loved helped called taught showed described
"""
ADJECTIVES = """
old small quiet bright dark cold warm heavy empty green red blue white black tall long short broken strange famous young
tired happy sad hungry brave careful slow quick early late deep narrow wide distant
"""
PLACES = "in near behind under beyond above beside across"
LINKS = "and while because when before after until although"
DETERMINERS = "the a this that every another his her their"
GROUPS = {
    group: [f" {word}" for word in group.split()] for group in (NOUNS, VERBS, ADJECTIVES, PLACES, LINKS, DETERMINERS)
}


class NotEnoughWordsError(ValueError):
    """The tokenizer splits too many of the words."""


def whole_words(encode: Callable[[str], list[int]]) -> dict[str, int]:
    """The words that are one token with the space before them, and the comma and full stop; to their token ids.

    Args:
        encode: text to token ids, without special tokens.

    Raises:
        NotEnoughWordsError: some part of speech is left with fewer than three words.
    """
    table: dict[str, int] = {}
    for piece in [".", ",", *(piece for group in GROUPS.values() for piece in group)]:
        token_ids = encode(f" it{piece}")[len(encode(" it")) :]
        if len(token_ids) == 1:
            table[piece] = token_ids[0]
    for group in GROUPS.values():
        if sum(piece in table for piece in group) < 3:
            raise NotEnoughWordsError(f"the tokenizer keeps fewer than three of these words whole:{''.join(group)}")
    return table


class Writer:
    """An endless text of sentences; the same for the same seed and words."""

    def __init__(self, words: dict[str, int], seed: int) -> None:
        self._words = words
        self._random = random.Random(seed)
        self._pieces = self._sentences()

    def take(self, num_tokens: int) -> list[int]:
        """The next so many tokens."""
        return [self._words[next(self._pieces)] for _ in range(num_tokens)]

    def _sentences(self) -> Iterator[str]:
        while True:
            yield from self._clause()
            if self._random.random() < 0.5:
                yield from self._known(",")
                yield self._pick(LINKS)
                yield from self._clause()
            yield from self._known(".")

    def _clause(self) -> Iterator[str]:
        yield from self._noun_phrase()
        yield self._pick(VERBS)
        yield from self._noun_phrase()
        if self._random.random() < 0.4:
            yield self._pick(PLACES)
            yield from self._noun_phrase()

    def _noun_phrase(self) -> Iterator[str]:
        yield self._pick(DETERMINERS)
        if self._random.random() < 0.6:
            yield self._pick(ADJECTIVES)
        yield self._pick(NOUNS)

    def _known(self, piece: str) -> Iterator[str]:
        if piece in self._words:
            yield piece

    def _pick(self, group: str) -> str:
        while True:
            piece = self._random.choice(GROUPS[group])
            if piece in self._words:
                return piece
