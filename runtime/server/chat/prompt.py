"""From the messages of a ChatAsk to the token ids of its prompt, and the format in which the model calls tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....chat_message import content_text
from ....tool_formats import DEFAULT_FORMAT, TOOL_FORMATS, ToolFormat
from ....tool_prompts import tell_of_tools
from ...chat_marks import TextSegment
from ...chat_template import ChatTemplate
from ...tokenizer import Tokenizer
from ..errors import ApiError
from .ask import ChatAsk


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """What the model reads.

    Attributes:
        tool_format: how it is told to call tools, and does.
    """

    token_ids: tuple[int, ...]
    tool_format: ToolFormat


def chat_prompt(
    tokenizer: Tokenizer, ask: ChatAsk, check_len: Callable[[int, str], None], *, opens_answer: bool = True
) -> ChatPrompt:
    """Cost: two renders of all messages; for a worker.

    Args:
        check_len: raises if so many characters, of the field of this name, are too many to be tokenised.
        opens_answer: end with what the answer begins with; otherwise these are the messages alone.

    Raises:
        ApiError: there is nothing to go on with, or the template calls tools in a way that is not known.
        ChatTemplateError: the messages do not fit the template, or it takes too long.
    """
    template = _template(tokenizer, ask)
    with template.within_budget():
        segments, tool_format = _segments(template, ask, opens_answer=opens_answer or ask.continues_last)
    check_len(sum(len(segment.text) for segment in segments), "messages")
    return ChatPrompt(tuple(tokenizer.encode_segments(segments)), tool_format)


def _segments(template: ChatTemplate, ask: ChatAsk, *, opens_answer: bool) -> tuple[list[TextSegment], ToolFormat]:
    messages = [_known_role(message, template) for message in ask.messages]
    if not messages:
        raise ApiError(400, "messages is empty: give at least one", param="messages")
    continued = _continued(messages) if ask.continues_last else ""
    if ask.continues_last:
        messages = messages[:-1]
    tool_format = template.tool_format or TOOL_FORMATS[DEFAULT_FORMAT]
    if template.knows_tools and template.tool_format is None and ask.callable_tools:
        raise ApiError(
            400, "the template of this model writes tool calls in a format that is not known here", param="tools"
        )
    if not template.knows_tools:
        messages = tell_of_tools(messages, [tool["function"] for tool in ask.tools], tool_format)
    tools = list(ask.tools) if ask.tools and template.knows_tools else None
    segments = template.segments(messages, opens_answer, tools)
    if continued:
        segments = [*segments, TextSegment(continued, is_template=False)]
    return segments, tool_format


def _template(tokenizer: Tokenizer, ask: ChatAsk) -> ChatTemplate:
    template = tokenizer.chat_template
    if ask.chat_template is not None:
        template = template.with_source(ask.chat_template)
    return template.with_options(ask.template_options) if ask.template_options else template


def _known_role(message: Mapping[str, Any], template: ChatTemplate) -> Mapping[str, Any]:
    """Developers are to OpenAI's newer models what the system was to the older ones."""
    is_new = message.get("role") == "developer" and "developer" not in (template.source or "")
    return {**message, "role": "system"} if is_new else message


def _continued(messages: Sequence[Mapping[str, Any]]) -> str:
    last = messages[-1]
    if last.get("role") != "assistant" or last.get("tool_calls"):
        raise ApiError(
            400, "only a last message of the assistant, without tool calls, can be gone on with", param="messages"
        )
    if len(messages) == 1:
        raise ApiError(400, "there is no message before the one to go on with", param="messages")
    return content_text(f"messages[{len(messages) - 1}].content", last.get("content"))
