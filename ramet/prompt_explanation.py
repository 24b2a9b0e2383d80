"""PromptExplanation: a prompt as a table: which tokens it is made of, what they spell, and who wrote that.

Shared by the engine's tokenizer and the language's conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

TEMPLATE = "template"
TOKENIZER = "tokenizer"
_MAX_SHOWN_IDS = 6
_MAX_CHARACTER_TOKENS = 8  # a character of four bytes, each with a token, and some more


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A run of tokens that one author wrote.

    Attributes:
        origin: "template"; "tokenizer" for what it adds by itself, such as BOS; else the message or field, such as
            "messages[2].content (user)".
        text: what the tokens spell, special tokens included. Only text of the template holds any.
    """

    origin: str
    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class PromptExplanation:
    """A prompt, part by part. `str()` is a table; a token that spans two parts counts with the first."""

    parts: tuple[PromptPart, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The whole prompt, as the model gets it."""
        return tuple(token_id for part in self.parts for token_id in part.token_ids)

    @property
    def text(self) -> str:
        """What all tokens spell."""
        return "".join(part.text for part in self.parts)

    def __str__(self) -> str:
        width = max([len("written by"), *(len(part.origin) for part in self.parts)])
        rows = [f"{'tokens':>6}  {'written by':<{width}}  text and token ids"]
        for part in self.parts:
            shown = ", ".join(map(str, part.token_ids[:_MAX_SHOWN_IDS]))
            dots = ", ..." if len(part.token_ids) > _MAX_SHOWN_IDS else ""
            rows.append(f"{len(part.token_ids):>6}  {part.origin:<{width}}  {part.text!r} [{shown}{dots}]")
        return "\n".join([*rows, f"{len(self.token_ids):>6}  in all"])


def explain_tokens(
    segments: Sequence[tuple[str, str]], token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> PromptExplanation:
    """Tell whose text each token begins in.

    Args:
        segments: origin and text of each, in order. Together they are the text that the tokens spell.
        decode: token ids to text, special tokens included.

    Cost: one decode of at most nine tokens per token.
    """
    whole = "".join(text for _, text in segments)
    position, idx, end = 0, 0, len(segments[0][1]) if segments else 0
    parts: list[PromptPart] = []
    for piece_ids, piece in _pieces(token_ids, decode):
        while idx < len(segments) and position >= end:
            idx += 1
            end += len(segments[idx][1]) if idx < len(segments) else 0
        spelled = next((form for form in (piece, piece.lstrip(" ")) if form and whole.startswith(form, position)), "")
        is_given = bool(spelled) and idx < len(segments)
        origin = segments[idx][0] if is_given else TOKENIZER
        position += len(spelled) if is_given else 0
        if parts and parts[-1].origin == origin:
            last = parts.pop()
            piece_ids, piece = (*last.token_ids, *piece_ids), last.text + piece
        parts.append(PromptPart(origin, piece_ids, piece))
    return PromptExplanation(tuple(parts))


def _pieces(token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Iterator[tuple[tuple[int, ...], str]]:
    """The fewest tokens at a time that spell whole characters, with what they spell."""
    start = 0
    for end in range(1, len(token_ids) + 1):
        before = token_ids[max(0, start - 1) : start]
        piece = decode([*before, *token_ids[start:end]])[len(decode(before)) if before else 0 :]
        is_open = piece.endswith("\N{REPLACEMENT CHARACTER}") and end - start < _MAX_CHARACTER_TOKENS
        if is_open and end < len(token_ids):
            continue
        yield tuple(token_ids[start:end]), piece
        start = end
