"""Healing the boundary between a prompt and a constrained text.

A prompt that ends in the middle of what the model would write as one token ("Answer: " before " yes") puts it off its
habit: it must go on from a token that it would not have written there. So the last tokens of the literal text are taken
back, their spelling becomes the beginning of the grammar, and the model chooses again where tokens end. (guidance calls
this token healing.)
"""

from __future__ import annotations

from collections.abc import Sequence

from .vocabulary import GrammarVocabulary

MAX_HEALED_TOKENS = 4


def healed_prefix(token_ids: Sequence[int], num_healable: int, vocabulary: GrammarVocabulary) -> tuple[int, str]:
    """How many tokens at the end of a prompt to take back, and their text.

    Args:
        num_healable: only so many at the end spell literal text.

    Returns:
        As many as possible, up to MAX_HEALED_TOKENS, such that a longer token begins with their joint spelling;
        (0, "") if there are none. At least one token of the prompt stays.
    """
    most = min(num_healable, MAX_HEALED_TOKENS, len(token_ids) - 1)
    for num_tokens in range(most, 0, -1):
        spellings = [vocabulary.token_bytes[token_id] for token_id in token_ids[-num_tokens:]]
        spelling = b"".join(spellings)
        if not all(spellings) or not vocabulary.can_extend(spelling):
            continue
        try:
            return num_tokens, spelling.decode("utf-8")
        except UnicodeDecodeError:  # it begins or ends inside a character
            continue
    return 0, ""
