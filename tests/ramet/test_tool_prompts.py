"""What a model is told of tools where its template cannot say it; nothing else of the messages changes or is lost."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.chat_message import ChatTemplateError
from ramet.tool_formats import TOOL_FORMATS
from ramet.tool_prompts import tell_of_tools

HERMES = TOOL_FORMATS["hermes"]
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
WRITTEN = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'
USER = {"role": "user", "content": "Look!"}
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {}}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def test_without_tools_and_calls_nothing_changes() -> None:
    messages = [{"role": "system", "content": [IMAGE]}, USER]  # the template refuses it
    assert tell_of_tools(messages, [], HERMES) == messages


@pytest.mark.parametrize("content", ["Be brief.", [text("Be brief.")]])
def test_tools_follow_what_the_system_says(content: Any) -> None:
    system, user = tell_of_tools([{"role": "system", "content": content}, USER], [LOOK], HERMES)
    assert system["content"].startswith("Be brief.\n\n")
    assert '"name": "look"' in system["content"]
    assert user == USER
    alone, *rest = tell_of_tools([USER], [LOOK], HERMES)
    assert (alone["role"], rest) == ("system", [USER])
    assert system["content"] == f"Be brief.\n\n{alone['content']}"


@pytest.mark.parametrize(
    ("content", "written"),
    [(None, WRITTEN), ("", WRITTEN), ("Well.", f"Well.\n{WRITTEN}"), ([text("a"), text("b")], f"a\nb\n{WRITTEN}")],
)
def test_calls_are_written_after_the_text(content: Any, written: str) -> None:
    said = {"role": "assistant", "content": content, "tool_calls": [CALL], "name": "me"}
    assert tell_of_tools([USER, said], [], HERMES)[1] == {"role": "assistant", "content": written, "name": "me"}


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([{"role": "system", "content": [text("a"), IMAGE]}], r"messages\[0\]\.content\[1\]"),
        ([USER, {"role": "assistant", "content": [IMAGE], "tool_calls": [CALL]}], r"messages\[1\]\.content\[0\]"),
        ([USER, {"role": "assistant", "content": "", "tool_calls": [{}]}], r"messages\[1\]\.tool_calls\[0\]"),
    ],
)
def test_what_cannot_be_told_is_refused_and_not_left_out(messages: list[dict[str, Any]], where: str) -> None:
    with pytest.raises(ChatTemplateError, match=where):
        tell_of_tools(messages, [LOOK], HERMES)
