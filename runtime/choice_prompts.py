"""Choices as users write them, made into continuations of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from .chat_template import TextSegment
from .errors import InvalidRequestError
from .outputs import ContinuationLogprobs
from .prompts import Prompt, is_conversation, tokenize_prompt
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ScoredChoice:
    """How likely a text is to follow a prompt.

    Attributes:
        text: the choice.
        token_ids: those that were scored, from where the choices leave the prompt.
        logprobs: of each of them given all before it.
        end_logprob: that the text, having come to the end of this choice, does not go on into a longer one; 0 if none
            begins with it.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    end_logprob: float

    @property
    def sum_logprob(self) -> float:
        """Log-probability of exactly this choice. As probabilities, those of all choices sum to at most 1."""
        return sum(self.logprobs) + self.end_logprob

    @property
    def mean_logprob(self) -> float:
        """Mean over its tokens, without the end."""
        return sum(self.logprobs) / len(self.logprobs)


@dataclass(frozen=True, slots=True)
class ChoicePrompt:
    """A prompt and its choices in tokens.

    Attributes:
        text: the prompt's text, if it has one.
        token_ids: what all choices follow; less than the prompt where a choice merges with its end.
        continuations: the rest of each choice.
    """

    text: str | None
    token_ids: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]

    def scored(self, choices: Sequence[str], found: Sequence[ContinuationLogprobs]) -> list[ScoredChoice]:
        """What was found of the continuations, for the choices."""
        return [
            ScoredChoice(
                text, token_ids, tuple(value for value in each.logprobs if value is not None), each.end_logprob
            )
            for text, token_ids, each in zip(choices, self.continuations, found, strict=True)
        ]


def tokenize_choices(prompt: Prompt, choices: Sequence[str], tokenizer: Tokenizer) -> ChoicePrompt:
    """Tokenise each choice together with the prompt, and find where the first of them leaves it.

    Spaces at the end of a text prompt count with the choices. A prompt of token ids is kept as it is, and the choices
    are tokenised by themselves. A choice never becomes a special token.

    Raises:
        InvalidRequestError: as for tokenize_prompt; or there are no choices, or one is no text, empty or twice there.
    """
    _check_choices(choices)
    text, alone = tokenize_prompt(prompt, tokenizer)
    before: Sequence[int] = alone
    segments: list[TextSegment] | None = None
    if is_conversation(prompt):
        segments = list(tokenizer.chat_template.segments(prompt))
    elif text is not None and (isinstance(prompt, str) or "prompt_token_ids" not in prompt):
        segments = [TextSegment(text, True)]
        before = tokenizer.encode_segments([TextSegment(text.rstrip(" "), True)])
    if segments is not None:
        joint = [tuple(tokenizer.encode_segments([*segments, TextSegment(choice, False)])) for choice in choices]
        common_len = min(_common_len(before, ids) for ids in joint)
        if common_len:
            return ChoicePrompt(text, joint[0][:common_len], tuple(ids[common_len:] for ids in joint))
    # Tokens are kept as they are; and so is a text of which nothing would be left to score the first token by.
    ends = [tokenizer.encode_segments([TextSegment(choice, False)], is_text_start=False) for choice in choices]
    return ChoicePrompt(text, alone, tuple(map(tuple, ends)))


def _common_len(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _check_choices(choices: Sequence[str]) -> None:
    if isinstance(choices, str) or not isinstance(choices, Sequence) or not choices:
        raise InvalidRequestError(f"choices={choices!r} must be a non-empty list of strings")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise InvalidRequestError(f"every choice must be a non-empty string, {choice!r} is not")
        if any("\ud800" <= char <= "\udfff" for char in choice):
            raise InvalidRequestError(f"the choice {choice!r} holds a lone surrogate; it is not valid Unicode")
    if len(set(choices)) != len(choices):
        raise InvalidRequestError(f"choices={choices!r} must differ from each other")
