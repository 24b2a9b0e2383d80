"""What a model's files say about its tokenizer beside the vocabulary itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import tokenizers

from .models.errors import ModelLoadError

Notice = Callable[[str], None]
"""Takes one sentence about slow or inexact work that is being done."""

END_OF_TURN_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|return|>",
    "<EOT>",
)
"""Special tokens that chat models end an answer with. Files often declare only one of the several a model uses."""


class TokenizerLoadError(ModelLoadError):
    """The tokenizer of a model cannot be built. The message names the file, the reason and what to do."""


@dataclass(frozen=True, slots=True)
class TokenizerMeta:
    """Declarations beside the vocabulary.

    Attributes:
        bos_token_id: begins a text, None where the model has none.
        eos_token_id: what chat templates mean by eos_token, None where nothing is declared.
        eos_token_ids: each of them ends a generation.
        adds_bos: the model was trained with the BOS token in front of every text.
        chat_template: Jinja source, None where the model has none.
    """

    bos_token_id: int | None
    eos_token_id: int | None
    eos_token_ids: frozenset[int]
    adds_bos: bool
    chat_template: str | None


def all_eos_token_ids(backend: tokenizers.Tokenizer, declared: Iterable[int]) -> frozenset[int]:
    """The declared end-of-sequence ids and those of every end-of-turn token the vocabulary marks as special."""
    added = backend.get_added_tokens_decoder()
    special = {token.content: token_id for token_id, token in added.items() if token.special}
    return frozenset(declared) | {special[token] for token in END_OF_TURN_TOKENS if token in special}
