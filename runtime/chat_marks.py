"""Finds in a rendered conversation what the template wrote and what it was given.

The conversation is rendered a second time with an unguessable mark in place of every content, and of every other text
that could become a special token; the marks show where these texts lie.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TextSegment:
    """A piece of a prompt.

    Attributes:
        is_template: written by the template, so special tokens in it are meant; otherwise they are ordinary text.
        origin: where a text that is not the template's comes from, such as "messages[2].content (user)".
    """

    text: str
    is_template: bool
    origin: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A text that a mark stands for. `message_idx` is that of the message whose content it is; None for other texts."""

    text: str
    origin: str
    message_idx: int | None = None


Pieces = list[tuple[str, MarkedText | None]]
"""The template's own pieces, each with the text that follows it; None after the last."""


class Marks:
    """A normalised conversation with marks in it.

    Attributes:
        messages, tools: with a mark in place of every content that says something, and of every other text for which
            `is_risky` holds.
        pattern: finds a mark.
    """

    def __init__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        is_risky: Callable[[str], bool],
    ) -> None:
        self._stem = f"x{secrets.token_hex(16)}x"
        self._is_risky = is_risky
        self._texts: list[MarkedText] = []
        self.pattern = re.compile(f"{self._stem}(\\d+)z")
        self.messages = [self._marked_message(idx, message) for idx, message in enumerate(messages)]
        self.tools = [self._marked(f"tools[{idx}]", tool) for idx, tool in enumerate(tools)]

    def split(self, marked: str) -> Pieces:
        """Cut a text that was rendered from the marked conversation."""
        pieces = self.pattern.split(marked)
        texts = [self._texts[int(idx)] for idx in pieces[1::2]]
        return list(zip(pieces[::2], [*texts, None], strict=True))

    def left_out(self, marked: str) -> list[int]:
        """Indices of the messages whose contents the template does not write."""
        there = {int(idx) for idx in self.pattern.findall(marked)}
        return [
            text.message_idx
            for idx, text in enumerate(self._texts)
            if text.message_idx is not None and idx not in there
        ]

    def _mark(self, text: MarkedText) -> str:
        self._texts.append(text)
        return f"{self._stem}{len(self._texts) - 1}z"

    def _marked_message(self, idx: int, message: Mapping[str, Any]) -> dict[str, Any]:
        where = f"messages[{idx}]"
        marked = {
            key: value if key in ("role", "content") else self._marked(f"{where}.{key!s:.40}", value)
            for key, value in message.items()
        }
        content = message["content"]
        if content.strip():
            marked["content"] = self._mark(MarkedText(content, f"{where}.content ({message['role']})", idx))
        return marked

    def _marked(self, where: str, value: Any) -> Any:
        if isinstance(value, str):
            return self._mark(MarkedText(value, where)) if self._is_risky(value) else value
        if isinstance(value, Mapping):
            return {key: self._marked(f"{where}.{key!s:.40}", item) for key, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self._marked(f"{where}[{idx}]", item) for idx, item in enumerate(value)]
        return value


def align(whole: str, pieces: Pieces) -> list[TextSegment] | None:
    """Cut the rendered text along template pieces and given texts, which the template may have stripped, or written as
    JSON strings.

    Returns None where the text is not made of them.
    """
    segments: list[TextSegment] = []
    position = 0
    for idx, (literal, given) in enumerate(pieces):
        if not whole.startswith(literal, position):
            return None
        segments.append(TextSegment(literal, is_template=True))
        position += len(literal)
        if given is None:
            break
        following, after_next = pieces[idx + 1]
        for variant in _variants(given.text):
            end = position + len(variant)
            fits = whole.startswith(variant, position) and whole.startswith(following, end)
            if fits and (after_next is not None or end + len(following) == len(whole)):
                segments.append(TextSegment(variant, is_template=False, origin=given.origin))
                position = end
                break
        else:
            return None
    return [segment for segment in segments if segment.text] if position == len(whole) else None


def _variants(text: str) -> list[str]:
    """How a template may write a text that it was given."""
    plain = [text, text.strip(), text.rstrip(), text.lstrip()]
    as_json = [json.dumps(each, ensure_ascii=ascii)[1:-1] for each in plain[:2] for ascii in (False, True)]
    return [*plain, *as_json]
