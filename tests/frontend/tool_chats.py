"""Tools, the calls of a scripted model, and the chat template of a family of models around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from ramet import MockBackend
from ramet.frontend.backend import Message, TextSegment
from ramet.frontend.backends.mock import GenerateScript, Reply
from ramet.frontend.backends.mock_tokenizer import MockTokenizer
from ramet.runtime.chat_template import ChatTemplate
from ramet.tool_formats import TOOL_FORMATS

from ..runtime.chat_templates import SPECIAL

Replies = GenerateScript | Sequence[Reply] | str | None


class TemplateBackend(MockBackend):
    """The mock with the chat template of a family of models."""

    def __init__(self, source: str, replies: Replies = None) -> None:
        super().__init__(replies, tokenizer=MockTokenizer(special_tokens=("<s>", "</s>", *SPECIAL)))
        self._template = ChatTemplate(source, "<s>", "</s>", SPECIAL)

    def chat_segments(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> Sequence[TextSegment]:
        segments = self._template.segments(messages, add_generation_prompt, tools)
        return [TextSegment(segment.text, segment.is_template, segment.origin) for segment in segments]


def weather(city: str, days: int = 1) -> str:
    """Tells the weather."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return f"Sunny in {city} for {days} days"


def add(a: int, b: int) -> int:
    return a + b


def calls_of(*calls: tuple[str, dict[str, Any]], name: str = "hermes") -> str:
    return TOOL_FORMATS[name].write(calls)


ROME = calls_of(("weather", {"city": "Rome"}))


def check_that_tokens_only_grow(backend: MockBackend) -> None:
    for before, after in zip(backend.requests, backend.requests[1:], strict=False):
        ids = before.call.prompt_token_ids
        assert after.call.prompt_token_ids[: len(ids)] == ids
        assert after.num_cached_tokens > len(ids)


class Place(BaseModel):
    city: str
    country: str = "Italy"
