"""Prompts as users write them, made into token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from ..chat_message import ChatTemplateError
from ..plain_numbers import plain_number
from .errors import InvalidRequestError
from .tokenizer import Tokenizer

Message = Mapping[str, Any]
"""A chat message: {"role": ..., "content": ...}."""

Prompt = str | Mapping[str, Any] | Sequence[Message]
"""Text, {"prompt_token_ids": [...]}, {"prompt": text}, or a conversation (a list of messages)."""


def as_prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as a list."""
    if isinstance(prompts, str | Mapping) or is_conversation(prompts):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise InvalidRequestError(f"prompts must be a prompt or a list of prompts, not {type(prompts).__name__}")
    return list(prompts)


def is_conversation(prompt: object) -> TypeGuard[Sequence[Message]]:
    """A non-empty list of messages."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and len(prompt) > 0
        and all(isinstance(message, Mapping) and "role" in message for message in prompt)
    )


def tokenize_prompt(prompt: Prompt, tokenizer: Tokenizer) -> tuple[str | None, tuple[int, ...]]:
    """The prompt's text, if it has one, and its token ids.

    Text is taken as the model's own input: special tokens in it are recognised and BOS is added where the model
    wants one. In a conversation only the chat template makes special tokens, never a message.

    Raises:
        InvalidRequestError: the prompt is empty, of an unknown form or no valid Unicode, or a conversation does not fit
            the model's template, or it has none.
    """
    if isinstance(prompt, str):
        return prompt, _encode_text(prompt, tokenizer)
    if is_conversation(prompt):
        try:
            return None, tuple(tokenizer.encode_segments(tokenizer.chat_template.segments(prompt)))
        except ChatTemplateError as error:
            raise InvalidRequestError(str(error)) from error
    if isinstance(prompt, Mapping):
        text = prompt.get("prompt")
        if "prompt_token_ids" in prompt:
            token_ids = prompt["prompt_token_ids"]
            if isinstance(token_ids, str | bytes | bytearray) or not isinstance(token_ids, Sequence):
                raise InvalidRequestError(f"prompt_token_ids must be a list of integers, not {token_ids!r}")
            return text, tuple(map(plain_number, token_ids))  # type: ignore[arg-type]  # checked at submit
        if isinstance(text, str):
            return text, _encode_text(text, tokenizer)
    raise InvalidRequestError(
        f"prompt {prompt!r} has no known form: give text, {{'prompt_token_ids': [...]}}, {{'prompt': text}} or a list "
        "of messages with 'role' and 'content'"
    )


def _encode_text(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    if not text:
        raise InvalidRequestError("the prompt is empty: it must have at least one character", field="prompt")
    return tuple(tokenizer.encode(text, add_special_tokens=True, parse_special=True))
