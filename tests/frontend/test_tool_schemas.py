"""Tools as they are described to a model, and their calls as they are written, read, and given by hand."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel

from ramet import ChatTemplateError, Conversation, InvalidProgramError, MockBackend
from ramet.frontend.chat.tool_schema import call_schema, function_schema
from ramet.tool_formats import TOOL_FORMATS, ToolFormat

from ..runtime.chat_templates import QWEN
from .tool_chats import Place, TemplateBackend, add, calls_of, weather


@pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=list(TOOL_FORMATS))
def test_a_format_reads_what_it_writes(tool_format: ToolFormat) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [("f", {"a": ["x", {"b": "}</tool"}]}), ("g", {})]
    for some in (calls[:1], calls):
        text = tool_format.write(some)
        assert tool_format.read(text) == ("", some)
        assert tool_format.read(f"\n{text} ") == ("", some)
    assert tool_format.read("no call {at all}") == ("no call {at all}", [])
    assert tool_format.read(' {"city": "Rome"}') == (' {"city": "Rome"}', [])


def test_plain_calls_may_come_as_a_list() -> None:
    text = '[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]'
    assert TOOL_FORMATS["json"].read(text) == ("", [("f", {"a": 1}), ("g", {})])


def book(
    place: Place,
    nights: Annotated[int, "how many"],
    kind: Literal["hotel", "tent"] = "hotel",
    notes: list[str] | None = None,
    prices: dict[str, float] | None = None,
) -> str:
    """Books a stay."""
    return f"{kind} in {place.city}, {place.country} for {nights}"


def test_a_function_says_its_schema() -> None:
    function = function_schema(book)["function"]
    assert (function["name"], function["description"]) == ("book", "Books a stay.")
    parameters = function["parameters"]
    assert parameters["required"] == ["place", "nights"]
    assert parameters["properties"]["nights"] == {"type": "integer", "description": "how many"}
    assert parameters["properties"]["kind"] == {"enum": ["hotel", "tent"]}
    assert parameters["properties"]["notes"]["anyOf"][0] == {"type": "array", "items": {"type": "string"}}
    assert parameters["properties"]["place"]["properties"]["city"]["type"] == "string"
    call = calls_of(("book", {"place": {"city": "Rome"}, "nights": 2}))
    chat = Conversation(tools=[book], backend=TemplateBackend(QWEN, [call, "ok"]))
    chat.ask("?")
    chat.run_tools()
    assert chat.messages[2]["content"] == "hotel in Rome, Italy for 2"


def untyped(x):  # type: ignore[no-untyped-def]
    return x


def positional(x: int, /) -> int:
    return x


def any_number(*values: int) -> int:
    return sum(values)


def of_sets(values: set[int]) -> int:
    return len(values)


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ([untyped], "'x' of untyped has no type: write x: str"),
        ([positional], "cannot be given by name"),
        ([any_number], "cannot be given by name"),
        ([of_sets], r"has the type set\[int\], which has no JSON schema"),
        ([lambda: 1], "has no name"),
        ([3], r"tools\[0\]=3 is not allowed"),
        ([{"type": "function"}], "a schema is"),
        ([add, add], "more than one 'add'"),
        ([{"name": "required"}], "a tool cannot be called 'required'"),
        (weather, "give a list of functions"),
    ],
)
def test_tools_that_cannot_be_described_are_refused(tools: Any, reason: str) -> None:
    with pytest.raises(InvalidProgramError, match=reason):
        Conversation(tools=tools, backend=TemplateBackend(QWEN))


def test_references_in_a_tools_schema_still_lead_where_they_led() -> None:
    class Node(BaseModel):
        name: str
        children: list[Node] = []

    def plant(tree: Place) -> None: ...

    schema = {"name": "grow", "parameters": Node.model_json_schema()}
    chat = Conversation(tools=[plant, schema], backend=TemplateBackend(QWEN))
    made = call_schema(chat._tools, "arguments")
    text = json.dumps(made)
    assert "#/$defs/tool1/$defs/" in text
    target: Any = made
    for step in made["$defs"]["tool1"]["$ref"].removeprefix("#/").split("/"):
        target = target[step]
    assert "children" in target["properties"]


BAD_CALLS: list[tuple[object, str]] = [
    (5, r"tool_calls=5 must be a list"),
    ([5], r"tool_calls\[0\]=5 must be"),
    ([{"id": "1"}], r"tool_calls\[0\] has name=None"),
    ([{"function": 3}], r"tool_calls\[0\]=.* must be"),
    ([{"function": {"name": "f"}}, {"function": {"name": ""}}], r"tool_calls\[1\] has name=''"),
    ([{"function": {"name": "f", "arguments": "{"}}], r"tool_calls\[0\] has arguments that are not JSON"),
    ([{"function": {"name": "f", "arguments": "[1]"}}], r"tool_calls\[0\] has arguments=\[1\]; they must be"),
]


@pytest.mark.parametrize(("calls", "error"), BAD_CALLS)
def test_malformed_calls_are_refused_where_they_are_given(calls: object, error: str) -> None:
    chat = Conversation(backend=MockBackend())
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    with pytest.raises(InvalidProgramError, match=rf"message\.{error}"):
        chat.add(message)
    with pytest.raises(InvalidProgramError, match=rf"messages\[1\]\.{error}"):
        chat.messages = [{"role": "user", "content": "x"}, message]
    assert chat.messages == []
    with pytest.raises(ChatTemplateError, match=rf"messages\[0\]\.{error}"):
        MockBackend().chat_segments([message])


def test_calls_without_arguments_are_calls() -> None:
    chat = Conversation(backend=MockBackend())
    for arguments in (None, "", " ", "null", "{}", {}):
        call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
        chat.messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
        assert [(call.name, call.arguments) for call in chat.open_tool_calls] == [("f", {})]


def test_the_mock_takes_the_parts_that_a_template_takes() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    (_, segment, _) = MockBackend().chat_segments([{"role": "user", "content": parts}], add_generation_prompt=False)
    assert segment.text == "one\ntwo"
    for bad in ([{"type": "image_url"}], [3], 3, b"x"):
        with pytest.raises(ChatTemplateError, match=r"messages\[0\]\.content"):
            MockBackend().chat_segments([{"role": "user", "content": bad}])
        with pytest.raises(InvalidProgramError, match=r"message\.content"):
            Conversation(backend=MockBackend()).ask(bad)  # type: ignore[arg-type]
