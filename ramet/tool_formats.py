"""How models write tool calls into their text: one ToolFormat each, and which of them a template was made for.

A new format is one entry of TOOL_FORMATS. The language and the server share it: one reads what a model wrote, the other
also has a grammar enforce it.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_DECODER = json.JSONDecoder()
_BETWEEN_CALLS = string.whitespace + ";,"


class MalformedToolCallError(ValueError):
    """A model began a tool call that is none. The message has what it wrote."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model asked for.

    Attributes:
        call_id: names it in the conversation; the result refers to it.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any] = field(hash=False)

    def to_message(self) -> dict[str, Any]:
        """As OpenAI writes it in an assistant message: the arguments as JSON text."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        return {"id": self.call_id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A way to write calls: {"name": ..., `arguments_key`: {...}}, each between `opening` and `closing`.

    Attributes:
        opening, closing: "" for calls that are the whole text; a list of them may then be one too.
        is_parallel: there may be more than one call in a message.
    """

    name: str
    arguments_key: str = "arguments"
    opening: str = ""
    closing: str = ""
    is_parallel: bool = True

    @property
    def is_whole_text(self) -> bool:
        """A text is a call from its beginning on, or none at all."""
        return not self.opening

    @property
    def mark(self) -> str:
        """What tells a call from other text as soon as it is there."""
        return self.opening.strip() or '{"name": "'

    def call_begin(self, name: str) -> str:
        """A call up to its arguments, as `write` writes it."""
        return f'{self.opening}{{"name": {json.dumps(name, ensure_ascii=False)}, "{self.arguments_key}": '

    @property
    def call_end(self) -> str:
        """What follows the arguments."""
        return "}" + self.closing

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Names and arguments as a model would write them."""
        texts = (
            f"{self.call_begin(name)}{json.dumps(dict(given), ensure_ascii=False)}{self.call_end}"
            for name, given in calls
        )
        return "\n".join(texts)

    def read(self, text: str) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
        """What a model wrote, apart from calls; and these, as names and arguments. Linear in the text.

        Raises:
            MalformedToolCallError: a call is begun, but is none.
        """
        if self.is_whole_text:
            return self._read_whole(text)
        content, *written = text.split(self.mark)
        calls = []
        for piece in written:
            value, rest = _first_json(piece)
            calls.append(self._checked(value, piece))
            content += rest.strip().removeprefix(self.closing.strip())
        return (content.strip() if written else text), calls

    def _read_whole(self, text: str) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
        rest = text.strip()
        looks_like_call = re.match(r'\[?\s*\{\s*"name"\s*:', rest) is not None
        if not looks_like_call:
            return text, []
        calls = []
        while rest:
            value, rest = _first_json(rest)
            calls += [self._checked(item, text) for item in (value if isinstance(value, list) else [value])]
            rest = rest.lstrip(_BETWEEN_CALLS)
        return "", calls

    def _checked(self, value: object, text: str) -> tuple[str, dict[str, Any]]:
        name = value.get("name") if isinstance(value, dict) else None
        arguments = value.get(self.arguments_key, {}) if isinstance(value, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise MalformedToolCallError(
                f'a tool call is {{"name": ..., "{self.arguments_key}": {{...}}}}, but the model wrote {text!r:.200}'
            )
        return name, arguments


TOOL_FORMATS: Mapping[str, ToolFormat] = {
    each.name: each
    for each in (
        ToolFormat("hermes", opening="<tool_call>\n", closing="\n</tool_call>"),
        ToolFormat("llama3", arguments_key="parameters", is_parallel=False),
        ToolFormat("json"),
    )
}
"""By name. "hermes" is that of Hermes and Qwen models."""

DEFAULT_FORMAT = "hermes"
"""Where the template knows no tools, so that any will do that the model is told of."""

RenderProbe = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], bool], str]
"""A template: messages, tools, and whether to open the next message, to text. Raises ValueError where it refuses."""

_PROBE = "ramet_probe"
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": _PROBE, "description": "x", "parameters": {"type": "object", "properties": {}}},
}
_PROBE_MESSAGES: Sequence[Mapping[str, Any]] = (
    {"role": "user", "content": "x"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "probe0000", "type": "function", "function": {"name": _PROBE, "arguments": '{"key": "value"}'}}
        ],
    },
)


def knows_tools(render: RenderProbe) -> bool:
    """Whether the template writes the tools it is given into the prompt."""
    try:
        return _PROBE in render(_PROBE_MESSAGES[:1], [_PROBE_TOOL], True)
    except ValueError:
        return False


def template_format(render: RenderProbe) -> ToolFormat | None:
    """The format in which the template writes calls; None where it writes none, or in one that is not known."""
    try:
        text = render(_PROBE_MESSAGES, [_PROBE_TOOL], False)
    except ValueError:
        return None
    for tool_format in TOOL_FORMATS.values():
        opening = re.escape(tool_format.opening.strip()) or r"(?<!\[)"  # a list of calls is another format
        pattern = rf'{opening}\s*\{{\s*"name"\s*:\s*"{_PROBE}"\s*,\s*"{tool_format.arguments_key}"\s*:\s*\{{'
        if re.search(pattern, text):
            return tool_format
    return None


def _first_json(text: str) -> tuple[object, str]:
    """The JSON value that a text begins with, and the rest of the text."""
    stripped = text.strip()
    try:
        value, end = _DECODER.raw_decode(stripped)
    except (ValueError, RecursionError) as error:
        raise MalformedToolCallError(f"a tool call must be JSON, but the model wrote {text!r:.200}: {error}") from error
    return value, stripped[end:]
