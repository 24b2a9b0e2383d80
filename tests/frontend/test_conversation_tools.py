"""Conversations with tools: schemas from functions, calls by grammar or read from the text, the loop, and templates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel

from ramet import ChatTemplateError, Conversation, InvalidProgramError, MockBackend, ToolCallError
from ramet.frontend.backend import Message, TextSegment
from ramet.frontend.backends.mock import GenerateScript, Reply
from ramet.frontend.backends.mock_tokenizer import MockTokenizer
from ramet.frontend.chat.tool_schema import call_schema, function_schema
from ramet.runtime.chat_template import ChatTemplate
from ramet.tool_formats import TOOL_FORMATS, ToolFormat

from ..runtime.chat_templates import GEMMA, LLAMA3, MISTRAL, QWEN, SMOLLM2, SPECIAL

TEMPLATES = {"qwen": QWEN, "llama3": LLAMA3, "mistral": MISTRAL, "smollm2": SMOLLM2}
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


# The loop


@pytest.mark.parametrize(
    ("source", "name"), [(QWEN, "hermes"), (LLAMA3, "llama3"), (SMOLLM2, "hermes")], ids=["qwen", "llama3", "smollm2"]
)
def test_tools_are_called_and_their_results_answered(source: str, name: str) -> None:
    replies = [calls_of(("weather", {"city": "Rome"}), name=name), "Sunny.", "Bye."]
    backend = TemplateBackend(source, replies)
    chat = Conversation(tools=[weather], backend=backend)
    reply = chat.ask("Rome?")
    (call,) = reply.tool_calls
    assert (reply.text, call.name, call.arguments, reply.tool_error) == ("", "weather", {"city": "Rome"}, None)
    assert chat.open_tool_calls == [call]
    assert chat.run_tools().text == "Sunny."
    assert chat.messages[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call.to_message()]},
        {"role": "tool", "tool_call_id": "call00000", "name": "weather", "content": "Sunny in Rome for 1 days"},
        {"role": "assistant", "content": "Sunny."},
    ]
    chat.ask("Thanks")
    check_that_tokens_only_grow(backend)
    prompt = backend.requests[-1].prompt
    assert "Tells the weather." in prompt
    assert replies[0] in prompt
    assert "Sunny in Rome" in prompt
    again = Conversation(tools=[weather], backend=backend, messages=chat.messages[:-2])
    whole = [*chat.explain_prompt().token_ids][: again.num_tokens]
    assert list(again.explain_prompt().token_ids) == whole


def test_a_template_that_takes_no_stand_in_goes_on_from_the_same_text() -> None:
    """Mistral's counts its users and assistants, and leaves out those with tool calls."""
    call = '[{"name": "weather", "arguments": {"city": "Rome"}}]'
    backend = TemplateBackend(MISTRAL, [call, "Sunny.", "Bye."])
    chat = Conversation(tools=[weather], backend=backend, tool_format="json")
    chat.ask("Rome?")
    assert chat.run_tools().text == "Sunny."
    chat.ask("Thanks")
    assert "[TOOL_RESULTS]" in backend.requests[1].prompt
    assert backend.requests[2].num_cached_tokens > len(backend.requests[1].call.prompt_token_ids)


def test_several_calls_of_one_answer_are_run_in_order() -> None:
    both = calls_of(("add", {"a": 1, "b": 2}), ("weather", {"city": "Rome", "days": 3}))
    backend = TemplateBackend(QWEN, [f"Let me see.\n{both}", "3 and sunny"])
    chat = Conversation(tools=[weather, add], backend=backend, max_tokens=1000)
    reply = chat.ask("?")
    assert (reply.text, [call.call_id for call in reply.tool_calls]) == ("Let me see.", ["call00000", "call00001"])
    chat.run_tools()
    assert [message["content"] for message in chat.messages[2:4]] == ["3", "Sunny in Rome for 3 days"]
    check_that_tokens_only_grow(backend)


def test_a_required_call_is_a_call_whatever_the_model_would_say() -> None:
    arguments = {"name": "weather", "arguments": {"city": "Rome", "days": 1}}
    backend = TemplateBackend(QWEN, [json.dumps(arguments), "ok"])
    chat = Conversation(tools=[weather, add], backend=backend)
    reply = chat.ask("Rome?", tool_choice="weather")
    assert reply.tool_calls[0].arguments == arguments["arguments"]
    request = backend.requests[0]
    assert request.prompt.endswith("<|im_start|>assistant\n<tool_call>\n")
    schema = json.loads(request.call.sampling_params.json_schema)  # type: ignore[union-attr, arg-type]
    assert schema["properties"]["name"] == {"const": "weather"}
    assert schema["$defs"]["tool0"]["required"] == ["city"]
    assert schema["$defs"]["tool0"]["additionalProperties"] is False
    chat.run_tools()
    assert backend.requests[1].prompt.startswith(f"{request.prompt}{json.dumps(arguments)}\n</tool_call><|im_end|>\n")
    check_that_tokens_only_grow(backend)


@pytest.mark.parametrize(
    "choice", ["weather", {"type": "function", "function": {"name": "weather"}}, {"name": "weather"}]
)
def test_a_tool_may_be_named_as_openai_does(choice: object) -> None:
    backend = TemplateBackend(QWEN, ['{"name": "weather", "arguments": {"city": "Rome"}}'])
    reply = Conversation(tools=[weather, add], backend=backend).ask("?", tool_choice=choice)
    assert reply.tool_calls[0].name == "weather"


def test_without_a_choice_of_tools_a_text_is_a_text() -> None:
    backend = TemplateBackend(QWEN, [ROME, "plain"])
    chat = Conversation(tools=[weather], backend=backend)
    reply = chat.ask("?", tool_choice="none")
    assert (reply.text, reply.tool_calls) == (ROME, ())
    assert chat.ask("?").tool_calls == ()
    assert chat.run_tools() is chat.last_reply


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call>\n{nonsense", "must be JSON, but the model wrote"),
        ('<tool_call>{"name": 3}</tool_call>', 'a tool call is {"name": ..., "arguments"'),
        ('<tool_call>{"name": "weather", "arguments": 3}</tool_call>', "a tool call is"),
        ('<tool_call>{"name": "fly", "arguments": {}}</tool_call>', "'fly', which is no tool; there are: weather"),
    ],
)
def test_a_call_that_cannot_be_read_is_kept_as_text_and_said(text: str, reason: str) -> None:
    chat = Conversation(tools=[weather], backend=TemplateBackend(QWEN, [text]))
    reply = chat.ask("?")
    assert (reply.text, reply.tool_calls) == (text, ())
    assert reply.tool_error is not None
    assert reason in reply.tool_error
    with pytest.raises(ToolCallError):
        chat.run_tools()


def test_a_call_that_was_cut_off_says_so() -> None:
    reply = Conversation(tools=[weather], backend=TemplateBackend(QWEN, [ROME])).ask("?", max_tokens=30)
    assert reply.tool_error is not None
    assert reply.tool_error.endswith("max_tokens=30 cut it off")


def test_a_tool_that_raises_is_raised_or_told() -> None:
    lost = calls_of(("add", {"a": 1, "b": 2}), ("weather", {"city": "Atlantis"}))
    backend = TemplateBackend(QWEN, [lost, "Sorry."])
    chat = Conversation(tools=[weather, add], backend=backend, max_tokens=1000)
    chat.ask("?")
    with pytest.raises(LookupError, match="no such city"):
        chat.run_tools()
    assert [call.name for call in chat.open_tool_calls] == ["weather"]
    with pytest.raises(InvalidProgramError, match="tool calls without a result"):
        chat.ask("Go on")
    assert chat.run_tools(on_tool_error="return").text == "Sorry."
    assert chat.messages[3]["content"] == "Error: LookupError: no such city"
    with pytest.raises(InvalidProgramError, match="on_tool_error"):
        Conversation(tools=[add], backend=TemplateBackend(QWEN, [lost])).run_tools(on_tool_error="hide")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments", [{"town": "Rome"}, {"city": "Rome", "hour": 1}, {}], ids=["other", "too many", "missing"]
)
def test_wrong_arguments_are_an_error_of_the_call(arguments: dict[str, Any]) -> None:
    chat = Conversation(tools=[weather], backend=TemplateBackend(QWEN, [calls_of(("weather", arguments))]))
    chat.ask("?")
    with pytest.raises(ToolCallError, match="weather does not take the arguments"):
        chat.run_tools()


def test_rounds_are_bounded() -> None:
    chat = Conversation(tools=[weather], backend=TemplateBackend(QWEN, lambda call, prompt: ROME))
    with pytest.raises(InvalidProgramError, match="no reply yet"):
        chat.run_tools()
    chat.ask("?")
    with pytest.raises(ToolCallError, match="after 3 rounds"):
        chat.run_tools(max_rounds=3)
    assert chat.messages[-1]["tool_calls"][0]["id"] == "call00003"


def test_tools_given_as_schemas_are_answered_by_hand() -> None:
    schema = function_schema(weather)
    for tool in (schema, schema["function"]):
        chat = Conversation(tools=[tool], backend=TemplateBackend(QWEN, [ROME, "ok"]))
        (call,) = chat.ask("?").tool_calls
        with pytest.raises(ToolCallError, match="was given as a schema"):
            chat.run_tools()
        chat.add_tool_result(call, {"degrees": 30})
        assert chat.messages[-1]["content"] == '{"degrees": 30}'
        with pytest.raises(InvalidProgramError, match="no open tool call"):
            chat.add_tool_result(call, "again")
        assert chat.ask().text == "ok"


def test_a_result_must_be_text_or_json() -> None:
    def strange() -> object:
        return object()

    chat = Conversation(tools=[strange], backend=TemplateBackend(QWEN, [calls_of(("strange", {}))]))
    chat.ask("?")
    with pytest.raises(ToolCallError, match="neither a text nor JSON"):
        chat.run_tools()


def test_tools_may_be_coroutines() -> None:
    async def slow(city: str) -> str:
        await asyncio.sleep(0)
        return f"{city} at last"

    replies = [calls_of(("slow", {"city": "Rome"})), "ok"]
    chat = Conversation(tools=[slow], backend=TemplateBackend(QWEN, replies))

    async def talk() -> str:
        await chat.aask("?")
        return (await chat.arun_tools()).text

    assert asyncio.run(talk()) == "ok"
    assert chat.messages[2]["content"] == "Rome at last"
    chat = Conversation(tools=[slow], backend=TemplateBackend(QWEN, replies))
    chat.ask("?")
    with pytest.raises(ToolCallError, match="await arun_tools"):
        chat.run_tools()


# Templates


def test_tools_that_a_template_does_not_know_are_in_the_system_message() -> None:
    backend = TemplateBackend(SMOLLM2, "ok")
    chat = Conversation("Be brief.", [weather], backend=backend)
    chat.ask("Hi")
    prompt = backend.requests[0].prompt
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\nYou may call these functions:\n{")
    assert '"name": "weather"' in prompt
    assert chat.system == "Be brief."
    chat = Conversation(tools=[weather], backend=backend)
    chat.ask("Hi")
    origins = [part.origin for part in chat.explain_prompt().parts]
    assert origins[:4] == ["template", "tools", "template", "messages[0].content (user)"]


def test_calls_without_a_template_for_them_are_written_into_the_content() -> None:
    backend = TemplateBackend(SMOLLM2, [ROME, "ok"])
    chat = Conversation(tools=[weather], backend=backend)
    chat.ask("?")
    chat.run_tools()
    copied = Conversation(backend=backend, messages=chat.messages)
    assert f"<|im_start|>assistant\n{ROME}<|im_end|>" in copied.explain_prompt().text


def test_the_bundled_order_of_a_model_without_tools_is_refused_by_its_template() -> None:
    chat = Conversation(backend=TemplateBackend(GEMMA, "ok"))
    chat.add({"role": "user", "content": "x"})
    with pytest.raises(ValueError, match=r"messages\[1\] of role 'user' after 'user': .*must alternate"):
        chat.ask("y")
    assert len(chat.messages) == 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_replies_keep_their_tokens_when_older_turns_go(name: str) -> None:
    backend = TemplateBackend(TEMPLATES[name], lambda call, prompt: " spaced out ")
    chat = Conversation(backend=backend)
    for question in ("one", "two", "three"):
        chat.ask(question)
    check_that_tokens_only_grow(backend)
    before = chat.explain_prompt()
    chat.messages = chat.messages[2:]
    chat.ask("four")
    prompt = backend.requests[-1].prompt
    assert prompt.count(" spaced out ") == 2
    assert "one" not in prompt
    replies = [part.token_ids for part in before.parts if "as generated" in part.origin]
    kept = [part.token_ids for part in chat.explain_prompt().parts if "as generated" in part.origin]
    assert kept == replies


def test_the_format_of_calls_is_the_templates_or_given() -> None:
    odd = QWEN.replace('<tool_call>\n{"name": "', "CALL ")
    assert odd != QWEN
    with pytest.raises(InvalidProgramError, match="a format that is not known: name the one it writes"):
        Conversation(tools=[weather], backend=TemplateBackend(odd))
    chat = Conversation(tools=[weather], backend=TemplateBackend(odd, ["x"]), tool_format="json")
    assert chat.ask("?").text == "x"


# Formats and schemas


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


class Place(BaseModel):
    city: str
    country: str = "Italy"


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


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tool_choice": "fly"}, "must be one of auto, none, required, weather"),
        ({"tool_choice": 3}, "tool_choice=3"),
        ({"tool_choice": "required", "regex": "a"}, "regex is not allowed with tool_choice='required'"),
    ],
)
def test_bad_tool_choices_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidProgramError, match=reason):
        Conversation(tools=[weather], backend=TemplateBackend(QWEN)).ask("?", **options)


@pytest.mark.model
def test_required_calls_on_the_bundled_model(backend: Any) -> None:
    """Whatever the model is like: the call is one, its references resolve, and the cache follows."""
    booked: list[tuple[str, int]] = []

    def reserve(place: Place, nights: Literal[1, 2, 3]) -> str:
        """Reserve a room."""
        booked.append((place.city, nights))
        return "done"

    chat = Conversation(tools=[reserve, add], backend=backend, temperature=0, max_tokens=64)
    reply = chat.ask("Two nights in Rome, please.", tool_choice="reserve")
    assert reply.tool_error is None
    assert [call.name for call in reply.tool_calls] == ["reserve"]
    final = chat.run_tools(tool_choice="none", max_tokens=8)
    assert len(booked) == 1
    assert final.meta is not None
    assert reply.meta is not None
    assert final.meta.num_cached_tokens >= reply.meta.num_prompt_tokens + reply.meta.num_generated_tokens - 2
    assert chat.ask("What is 2 + 3?", tool_choice="required").tool_calls


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
