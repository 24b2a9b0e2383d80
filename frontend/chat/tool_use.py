"""ToolUse: the tools of a conversation, and how the model is told of them, calls them and is answered."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...tool_formats import (
    DEFAULT_FORMAT,
    TOOL_FORMATS,
    MalformedToolCallError,
    ToolCall,
    ToolFormat,
    knows_tools,
    template_format,
)
from ...tool_prompts import tell_of_tools
from ..backend import Backend, Message
from ..errors import InvalidProgramError, ToolCallError
from .tool_schema import TOOL_CHOICES, Tool, call_schema

OnToolError = Literal["raise", "return"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools in the format of a template.

    Where the template knows no tools, they are described in the system message instead, and calls are written into the
    content of the messages.
    """

    tools: tuple[Tool, ...]
    format: ToolFormat
    is_in_template: bool

    @property
    def template_tools(self) -> list[Mapping[str, Any]] | None:
        """What the template is given."""
        return [tool.schema for tool in self.tools] if self.tools and self.is_in_template else None

    def prepare(self, messages: list[Message]) -> list[Message]:
        """The messages as this template can write them."""
        if self.is_in_template:
            return messages
        functions = [tool.schema["function"] for tool in self.tools]
        return [dict(message) for message in tell_of_tools(messages, functions, self.format)]

    def read(self, text: str, first_id: int) -> tuple[str, tuple[ToolCall, ...]]:
        """What a model wrote, apart from calls, and the calls, which are numbered from `first_id`.

        Raises:
            ToolCallError: a call is begun, but is none, or of a tool there is not.
        """
        try:
            content, calls = self.format.read(text)
        except MalformedToolCallError as error:
            raise ToolCallError(str(error)) from error
        for name, _ in calls:
            self.named(name)
        # Nine letters and digits: some templates insist.
        numbered = (ToolCall(f"call{first_id + idx:05d}", name, given) for idx, (name, given) in enumerate(calls))
        return content, tuple(numbered)

    def named(self, name: str) -> Tool:
        found = next((tool for tool in self.tools if tool.name == name), None)
        if found is None:
            known = ", ".join(tool.name for tool in self.tools)
            raise ToolCallError(f"the model calls {name!r}, which is no tool; there are: {known}")
        return found

    def call(self, call: ToolCall, on_error: OnToolError) -> Any:
        """What the tool returns; what it raises, or that as a text for the model.

        Raises:
            ToolCallError: it is a coroutine function.
        """
        try:
            result = self.named(call.name).call(call.arguments)
        except Exception as error:
            if on_error == "raise":
                raise
            return _error_text(error)
        if inspect.iscoroutine(result):
            result.close()
            raise ToolCallError(f"{call.name} is a coroutine function: use await arun_tools()")
        return result

    async def acall(self, call: ToolCall, on_error: OnToolError) -> Any:
        """The same, also for coroutine functions."""
        try:
            result = self.named(call.name).call(call.arguments)
            return await result if inspect.iscoroutine(result) else result
        except Exception as error:
            if on_error == "raise":
                raise
            return _error_text(error)

    def forced(self, choice: object) -> tuple[Tool, ...]:
        """The tools of which the reply must call one; none if it may do as it likes.

        Args:
            choice: "auto", "none", "required", the name of a tool, or OpenAI's {"type": "function", "function":
                {"name": ...}}.

        Raises:
            InvalidProgramError: it is none of these, or there is no such tool.
        """
        if isinstance(choice, Mapping):
            function = choice.get("function", choice)
            choice = function.get("name") if isinstance(function, Mapping) else None
        if choice == "required" and self.tools:
            return self.tools
        if choice in ("auto", "none"):
            return ()
        chosen = tuple(tool for tool in self.tools if tool.name == choice)
        if not chosen:
            names = ", ".join([*TOOL_CHOICES, *(tool.name for tool in self.tools)])
            without = "" if self.tools else "; this conversation has no tools"
            raise InvalidProgramError(f"tool_choice={choice!r} is not allowed: it must be one of {names}{without}")
        return chosen

    def schema(self, forced: Sequence[Tool]) -> dict[str, Any]:
        """Of the JSON text of a call of one of these."""
        return call_schema(forced, self.format.arguments_key)


NO_TOOLS = ToolUse((), TOOL_FORMATS[DEFAULT_FORMAT], is_in_template=True)
"""For a conversation that neither has tools nor calls in its messages."""


def check_tool_loop(max_rounds: object, on_tool_error: object) -> None:
    """
    Raises:
        InvalidProgramError: one of these options of `run_tools` has another value than it may have.
    """
    if isinstance(max_rounds, bool) or not isinstance(max_rounds, int) or max_rounds < 1:
        raise InvalidProgramError(f"max_rounds={max_rounds!r} is not allowed: it must be a number from 1")
    if on_tool_error not in ("raise", "return"):
        raise InvalidProgramError(f"on_tool_error={on_tool_error!r} is not allowed: use 'raise' or 'return'")


def tool_use(backend: Backend, tools: tuple[Tool, ...], format_name: str | None) -> ToolUse:
    """Tools in the format that is named, else in the template's.

    Raises:
        InvalidProgramError: no such format; or none is named and the template writes calls in one that is not known.
    """

    def render(
        messages: Sequence[Mapping[str, Any]], schemas: Sequence[Mapping[str, Any]], add_generation_prompt: bool
    ) -> str:
        plain = [dict(message) for message in messages]
        segments = backend.chat_segments(plain, tools=schemas, add_generation_prompt=add_generation_prompt)
        return "".join(segment.text for segment in segments)

    named = None if format_name is None else named_format(format_name)
    written = template_format(render)
    is_in_template = written is not None or knows_tools(render)
    chosen = named or written or (None if is_in_template and tools else TOOL_FORMATS[DEFAULT_FORMAT])
    if chosen is None:
        raise InvalidProgramError(
            "the template of this model writes tool calls in a format that is not known: name the one it writes, "
            f"tool_format= one of {', '.join(TOOL_FORMATS)}"
        )
    return ToolUse(tools, chosen, is_in_template)


def named_format(name: object) -> ToolFormat:
    """
    Raises:
        InvalidProgramError: there is none of that name.
    """
    if not isinstance(name, str) or name not in TOOL_FORMATS:
        raise InvalidProgramError(f"tool_format={name!r} is not allowed: it must be one of {', '.join(TOOL_FORMATS)}")
    return TOOL_FORMATS[name]


def _error_text(error: Exception) -> str:
    """What the model is told of a tool that raised."""
    return f"Error: {type(error).__name__}: {error}"


def result_text(name: str, result: object) -> str:
    """What a tool returned, as the content of a message: a text as it is, anything else as JSON.

    Raises:
        ToolCallError: it cannot be written as JSON.
    """
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolCallError(
            f"{name} returned {result!r:.200}, which is neither a text nor JSON ({error}): return one of these"
        ) from error
