"""Conversations on the mock backend: what is sent turn by turn, and what edits, branches and the context limit do."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ramet import (
    ContextOverflowError,
    Conversation,
    GenerationError,
    InvalidProgramError,
    InvalidSamplingParamsError,
    MockBackend,
    Overflow,
    ReadTimeoutError,
    UnparsedTextError,
    assistant,
    function,
    gen,
    tool,
    user,
)
from ramet.frontend.backend import GenerateCall, Message, ProgramEnded
from ramet.frontend.backends.mock import Mode, Reply

Script = Sequence[Reply] | Callable[[GenerateCall, str], Reply] | str | None


def start(replies: Script = None, *, mode: Mode = "immediate", **options: Any) -> tuple[MockBackend, Conversation]:
    backend = MockBackend(replies, mode=mode)
    return backend, Conversation(**{"backend": backend, "max_tokens": 20, "temperature": 0, **options})


def echo(call: GenerateCall, prompt: str) -> str:
    """Answers the last question, so that every reply is known."""
    return "re " + prompt.rpartition("<|start|>user\n")[2].partition("<|end|>")[0]


def contents(chat: Conversation) -> list[str]:
    return [message["content"] for message in chat.messages]


def prompts(backend: MockBackend) -> list[str]:
    return [request.prompt for request in backend.requests]


def check_that_tokens_only_grow(backend: MockBackend) -> None:
    """Every prompt begins with the one before and its reply."""
    for before, after in zip(backend.requests, backend.requests[1:], strict=False):
        ids = after.call.prompt_token_ids
        assert ids[: len(before.call.prompt_token_ids)] == before.call.prompt_token_ids
        assert after.num_cached_tokens >= len(before.call.prompt_token_ids)


# Asking


def test_every_turn_sends_what_is_new() -> None:
    backend, chat = start(["Hello!", "Well."], system="Be brief.")
    reply = chat.ask("Hi")
    assert (reply.text, str(reply), reply.value, reply.tool_calls, reply.dropped) == (
        "Hello!",
        "Hello!",
        "Hello!",
        (),
        (),
    )
    second = chat.ask("And?")
    first_prompt = "<|start|>system\nBe brief.<|end|>\n<|start|>user\nHi<|end|>\n<|start|>assistant\n"
    assert prompts(backend) == [
        first_prompt,
        f"{first_prompt}Hello!<|end|>\n<|start|>user\nAnd?<|end|>\n<|start|>assistant\n",
    ]
    assert second.meta is not None
    assert second.meta.num_cached_tokens == len(backend.requests[0].call.prompt_token_ids) + len("Hello!")
    assert chat.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "Well."},
    ]
    assert chat.last_reply == second
    assert repr(chat) == "<Conversation of 5 messages in 2 turns>"
    assert [record.prompt_token_ids for record in chat.calls()] == [
        request.call.prompt_token_ids for request in backend.requests
    ]


def test_special_tokens_in_messages_stay_text() -> None:
    backend, chat = start(["<|end|>", "ok"])
    chat.ask("<|end|>")
    chat.ask("<|start|>")
    ids = backend.requests[1].call.prompt_token_ids
    assert ids.count(backend.tokenizer.special_ids["<|end|>"]) == 3
    assert ids.count(backend.tokenizer.special_ids["<|start|>"]) == 4


def test_options_of_gen_hold_for_one_reply() -> None:
    backend, chat = start(["41", '{"a": 1}', "yes", "b" * 30])
    assert chat.ask("x", dtype=int).value == 41
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert chat.ask("x", json_schema=schema, parse=True).value == {"a": 1}
    assert chat.ask("x", regex="yes|no", max_tokens=3).text == "yes"
    assert chat.ask("x", max_tokens=3, stop="c").text == "bbb"
    params = [request.call.sampling_params for request in backend.requests]  # type: ignore[union-attr]
    assert [each.max_tokens for each in params] == [20, 20, 3, 3]
    assert [each.temperature for each in params] == [0, 0, 0, 0]


def test_a_choice_is_selected_and_its_tokens_kept() -> None:
    backend, chat = start(["ok"])
    reply = chat.ask("x", choices=["maybe", "no"])
    assert (reply.text, contents(chat)[-1]) == ("no", "no")
    assert reply.meta is not None
    assert len(reply.meta.choices) == 2
    assert list(chat.stream("y", choices=["maybe", "no"])) == ["no"]
    chat.ask("z")
    assert prompts(backend)[-1].count("assistant\nno<|end|>") == 2
    check_that_tokens_only_grow(backend)


def test_what_a_stop_string_cut_is_tokenised_with_what_follows() -> None:
    backend, chat = start(["one STOP", "two"])
    assert chat.ask("x", stop=["STOP"]).text == "one "
    chat.ask("y")
    assert "assistant\none <|end|>" in prompts(backend)[1]


def test_a_text_that_does_not_parse_is_kept_and_its_value_raises() -> None:
    _, chat = start(["123456"])
    reply = chat.ask("x", json_schema={"type": "integer"}, parse=True, max_tokens=3)
    assert (reply.text, reply.value) == ("123", 123)
    _, chat = start(['"abcdef"'])
    reply = chat.ask("x", dtype=str, max_tokens=3)
    assert contents(chat)[-1] == reply.text == '"ab'
    with pytest.raises(UnparsedTextError):
        _ = reply.value


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"temprature": 1}, "'temprature'.*did you mean 'temperature'"),
        ({"n": 2}, "n=2 is not allowed: a conversation has one reply at a time"),
        ({"name": "x"}, "name='x' is not allowed"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"tool_choice": "required"}, "has no tools"),
    ],
)
def test_bad_options_leave_the_conversation_as_it_was(options: dict[str, Any], error: str) -> None:
    backend, chat = start()
    with pytest.raises((InvalidProgramError, InvalidSamplingParamsError), match=error):
        chat.ask("x", **options)
    assert (chat.messages, backend.requests) == ([], [])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_token": 1}, "'max_token'.*did you mean 'max_tokens'"),
        ({"regex": "a"}, "'regex'.*an option of ask"),
        ({"on_overflow": "drop"}, "on_overflow='drop' is not allowed"),
        ({"max_context_len": 0}, "max_context_len=0 is not allowed"),
        ({"messages": "Hi"}, "messages='Hi' is not allowed"),
        ({"messages": [{"role": "usr"}]}, r"messages\[0\]=.* is not allowed"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\].content=3 must be"),
        ({"tool_format": "xml"}, "tool_format='xml' is not allowed: it must be one of hermes"),
        ({"temperature": -1}, "temperature=-1"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises((InvalidProgramError, InvalidSamplingParamsError), match=error):
        start(**options)


def test_a_failed_reply_leaves_the_conversation_as_it_was() -> None:
    backend, chat = start(["ok", ValueError("broken"), "fine"])
    chat.ask("one")
    before = chat.messages
    with pytest.raises(GenerationError, match="the reply failed: broken") as caught:
        chat.ask("two")
    assert isinstance(caught.value.__cause__, ValueError)
    assert chat.messages == before
    assert chat.ask("three").text == "fine"
    assert "two" not in prompts(backend)[2]
    assert [record.failure is not None for record in chat.calls()] == [False, True, False]


def test_there_must_be_something_to_answer() -> None:
    _, chat = start(["ok", "yes"])
    with pytest.raises(InvalidProgramError, match="nothing to answer"):
        chat.ask()
    chat.add({"role": "user", "content": "Hi"})
    assert chat.ask().text == "ok"
    with pytest.raises(InvalidProgramError, match="nothing to answer"):
        chat.ask()
    chat.add({"role": "user", "content": [{"type": "text", "text": "parts"}]})
    assert contents(chat)[-1] == [{"type": "text", "text": "parts"}]


# Streams


def test_a_stream_shows_the_reply_as_it_comes() -> None:
    backend, chat = start(["abcdef", "ok"], mode="background")
    assert list(chat.stream("x")) == list("abcdef")
    assert chat.last_reply is not None
    assert chat.last_reply.text == "abcdef"
    chat.ask("y")
    check_that_tokens_only_grow(backend)
    backend.close()


def test_leaving_a_stream_keeps_what_was_seen() -> None:
    backend, chat = start(["abcdef", "ok"], mode="background")
    for piece in chat.stream("x"):
        if piece == "c":
            break
    assert contents(chat) == ["x", "abc"]
    assert chat.last_reply is not None
    assert chat.last_reply.is_stopped
    chat.ask("y")
    assert "assistant\nabc<|end|>" in prompts(backend)[1]
    backend.close()


def test_a_stream_that_nobody_began_was_never_asked() -> None:
    backend, chat = start(["ok"], mode="manual")
    chat.stream("x")
    assert (chat.messages, backend.waiting) == ([], ())
    stream = chat.stream("y")
    stream.close()  # type: ignore[attr-defined]
    assert (chat.messages, backend.waiting, list(stream)) == ([], (), [])
    chat.astream("z")
    assert chat.messages == []
    chat.add({"role": "user", "content": "free"})


def test_leaving_an_async_stream_settles_the_reply_at_once() -> None:
    backend, chat = start(["abcdef", "ok"], mode="background")

    async def talk() -> None:
        async for piece in chat.astream("x"):
            assert piece
            break
        assert chat.ask("y").text == "ok"
        stream = chat.astream("z")
        await stream.aclose()  # type: ignore[attr-defined]
        assert [piece async for piece in stream] == []

    asyncio.run(talk())
    assert contents(chat)[::2] == ["x", "y"]
    assert "abcdef".startswith(contents(chat)[1])
    backend.close()


def test_one_reply_at_a_time() -> None:
    backend, chat = start(["ok"], mode="manual")
    pending = chat.send("x")
    changes: list[Callable[[], object]] = [
        lambda: chat.ask("y"),
        lambda: chat.edit(0, "y"),
        chat.undo,
        chat.branch,
        chat.regenerate,
        lambda: chat.add({"role": "user", "content": "y"}),
    ]
    for change in changes:
        with pytest.raises(InvalidProgramError, match="still open"):
            change()
    with pytest.raises(ReadTimeoutError):
        pending.result(timeout=0.01)
    assert pending.text_so_far() == ""
    backend.answer_all()
    assert pending.result() is pending.result()
    assert pending.stop() is pending.result()
    assert contents(chat) == ["x", "ok"]


def test_a_reply_that_takes_too_long_is_abandoned() -> None:
    backend, chat = start(["ok"], mode="manual")
    with pytest.raises(ReadTimeoutError):
        chat.ask("x", timeout=0.01)
    assert (chat.messages, backend.waiting) == ([], ())


def test_async() -> None:
    backend, chat = start(["abc", "defg", ValueError("broken"), "hijk", "ok"], mode="background")

    async def talk() -> None:
        assert (await chat.aask("one")).text == "abc"
        pieces = [piece async for piece in chat.astream("two")]
        assert "".join(pieces) == "defg"
        with pytest.raises(GenerationError, match="broken"):
            await chat.aask("three")
        stream = chat.astream("four")
        assert await anext(stream) != ""
        await stream.aclose()  # type: ignore[attr-defined]
        assert (await chat.aask("five", choices=["a", "bb"])).text == "a"

    asyncio.run(talk())
    assert contents(chat)[:4] == ["one", "abc", "two", "defg"]
    assert "hijk".startswith(contents(chat)[5])
    backend.close()


def test_cancelling_the_task_abandons_the_reply() -> None:
    backend, chat = start(mode="manual")

    async def talk() -> None:
        task = asyncio.create_task(chat.aask("x"))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(talk())
    assert (chat.messages, backend.waiting) == ([], ())


# History


def test_rewind_and_undo_send_the_same_tokens_again() -> None:
    backend, chat = start(echo)
    for question in ("one", "two", "three"):
        chat.ask(question)
    assert [message["content"] for message in chat.rewind(2)] == ["two", "re two", "three", "re three"]
    chat.ask("two")
    first, again = backend.requests[1].call, backend.requests[3].call
    assert again.prompt_token_ids == first.prompt_token_ids
    assert backend.requests[3].num_cached_tokens == len(first.prompt_token_ids) - 1
    assert [message["content"] for message in chat.undo()] == ["two", "re two"]
    assert chat.rewind(0) == []
    with pytest.raises(InvalidProgramError, match="there is no turn -2: this conversation has 1"):
        chat.rewind(2)
    with pytest.raises(InvalidProgramError, match="rewind"):
        chat.rewind(-1)


def test_edit_drops_what_follows_and_is_answered_on_demand() -> None:
    backend, chat = start(echo, system="Be brief.")
    for question in ("one", "two", "three"):
        chat.ask(question)
    dropped = chat.edit(1, "2")
    assert [message["content"] for message in dropped] == ["re two", "three", "re three"]
    assert contents(chat) == ["Be brief.", "one", "re one", "2"]
    assert chat.ask().text == "re 2"
    shared = backend.requests[1].call.prompt_token_ids
    num_same = next(idx for idx, pair in enumerate(zip(*both(backend, 1, 3), strict=False)) if pair[0] != pair[1])
    assert backend.requests[3].num_cached_tokens == num_same > len(shared) - 30
    assert chat.edit(-1, "2b") == [{"role": "assistant", "content": "re 2"}]
    with pytest.raises(InvalidProgramError, match="there is no turn 2"):
        chat.edit(2, "x")


def both(backend: MockBackend, left: int, right: int) -> tuple[Sequence[int], Sequence[int]]:
    return backend.requests[left].call.prompt_token_ids, backend.requests[right].call.prompt_token_ids


def test_regenerate_answers_the_last_question_again() -> None:
    backend, chat = start(["one", "two", ValueError("broken")])
    with pytest.raises(InvalidProgramError, match="no question"):
        chat.regenerate()
    chat.ask("x")
    assert chat.regenerate(temperature=1.0).text == "two"
    assert contents(chat) == ["x", "two"]
    assert backend.requests[0].call.prompt_token_ids == backend.requests[1].call.prompt_token_ids
    with pytest.raises(GenerationError):
        chat.regenerate()
    assert contents(chat) == ["x", "two"]


def test_branches_share_the_cache_and_nothing_else() -> None:
    backend, chat = start(echo)
    chat.ask("one")
    other = chat.branch()
    chat.ask("left")
    other.ask("right")
    assert contents(chat) == ["one", "re one", "left", "re left"]
    assert contents(other) == ["one", "re one", "right", "re right"]
    assert backend.requests[2].num_cached_tokens > len(backend.requests[0].call.prompt_token_ids) + len("re one")
    run_ids = {request.call.program.run_id for request in backend.requests if request.call.program is not None}
    assert len(run_ids) == 2


def test_the_system_message_can_change_and_all_else_stays() -> None:
    backend, chat = start(echo, system="Be brief.")
    chat.ask("one")
    chat.ask("two")
    chat.system = "Be kind."
    assert chat.system == "Be kind."
    chat.ask("three")
    expected = prompts(backend)[1].replace("brief", "kind")
    assert prompts(backend)[2].startswith(expected + "re two<|end|>\n<|start|>user\nthree")
    chat.system = None
    chat.ask("four")
    assert contents(chat)[0] == "one"
    assert chat.system is None
    check_that_tokens_only_grow_from(backend, 3)
    chat.clear()
    assert chat.messages == []


def check_that_tokens_only_grow_from(backend: MockBackend, idx: int) -> None:
    assert prompts(backend)[idx].startswith("<|start|>user\none<|end|>\n<|start|>assistant\nre one<|end|>")


def test_set_messages_keep_their_tokens_as_far_as_they_are_the_same() -> None:
    backend, chat = start(echo)
    for question in ("one", "two", "three"):
        chat.ask(question)
    messages = chat.messages
    chat.messages = [*messages[:4], {"role": "user", "content": "new"}]
    chat.ask()
    assert backend.requests[3].num_cached_tokens >= len(backend.requests[1].call.prompt_token_ids) + len("re two")
    messages[0]["content"] = "changed outside"
    assert contents(chat)[0] == "one"


def test_messages_travel_as_json() -> None:
    backend, chat = start(echo, system="Kürze!")
    chat.ask("one")
    text = chat.to_json()
    assert json.loads(text) == chat.messages
    assert "Kürze" in text
    other = Conversation.from_json(text, backend=backend)
    other.ask("two")
    assert contents(other)[:3] == contents(chat)
    assert backend.requests[1].num_cached_tokens > len(backend.requests[0].call.prompt_token_ids)
    for bad in ("{", "3", '["x"]'):
        with pytest.raises(InvalidProgramError):
            Conversation.from_json(bad, backend=backend)


def test_the_backend_is_told_when_a_conversation_is_over() -> None:
    backend, chat = start("ok")
    chat.ask("x")
    program = backend.requests[0].call.program
    assert program is not None
    assert backend.hints == []
    del chat
    gc.collect()
    assert backend.hints == [ProgramEnded(program.run_id)]


# The context limit


def test_tokens_are_counted_before_sending() -> None:
    backend, chat = start("ok", system="Be brief.", max_context_len=200)
    assert chat.room == 200 - chat.num_tokens
    expected = chat.count_tokens("Hello")
    chat.ask("Hello")
    assert len(backend.requests[0].call.prompt_token_ids) == expected
    assert chat.num_tokens == expected + len("ok") + 2
    assert start("ok")[1].num_tokens == 0
    assert start("ok")[1].room is None


def test_the_room_for_a_reply_is_what_the_context_leaves() -> None:
    backend, chat = start("x" * 500, max_context_len=80, max_tokens=500)
    reply = chat.ask("Hi")
    num_left = 80 - len(backend.requests[0].call.prompt_token_ids)
    assert reply.max_tokens == num_left == len(reply.text)
    assert reply.meta is not None
    assert reply.meta.finish_reason == "length"


def test_too_long_is_an_error_unless_told_otherwise() -> None:
    _, chat = start("ok", max_context_len=100)
    chat.ask("a" * 20)
    before = chat.messages
    with pytest.raises(ContextOverflowError, match=r"needs \d+ tokens and the reply 20, but the context limit is 100"):
        chat.ask("b" * 20)
    assert (chat.messages, chat.num_dropped) == (before, 0)
    assert chat.ask("b").text == "ok"


def test_the_oldest_turns_are_dropped_whole_if_asked_for() -> None:
    backend, chat = start(echo, system="Be brief.", max_context_len=150, on_overflow="drop_oldest")
    chat.ask("a" * 10)
    chat.ask("b" * 10)
    reply = chat.ask("c" * 10)
    dropped = [{"role": "user", "content": "a" * 10}, {"role": "assistant", "content": "re " + "a" * 10}]
    assert list(reply.dropped) == chat.dropped == dropped
    assert chat.num_dropped == 2
    assert contents(chat)[:2] == ["Be brief.", "b" * 10]
    assert "aaa" not in prompts(backend)[-1]
    assert len(backend.requests[-1].call.prompt_token_ids) + 20 <= 150
    with pytest.raises(ContextOverflowError, match="nothing older is left to drop"):
        chat.ask("d" * 200)
    assert chat.num_dropped == 2
    assert contents(chat)[1] == "b" * 10


def test_a_function_decides_what_goes() -> None:
    seen: list[Overflow] = []

    def summarise(overflow: Overflow) -> list[Message]:
        seen.append(overflow)
        return [{"role": "system", "content": "It was about a."}, *overflow.messages[2:]]

    _, chat = start(echo, max_context_len=105, on_overflow=summarise)
    chat.ask("a" * 20)
    reply = chat.ask("b" * 10)
    assert [message["content"] for message in reply.dropped] == ["a" * 20, "re " + "a" * 17]
    assert contents(chat)[:2] == ["It was about a.", "b" * 10]
    assert len(seen) == 1
    assert seen[0].num_prompt_tokens + seen[0].num_reply_tokens > seen[0].max_context_len == 105
    _, chat = start(echo, max_context_len=60, on_overflow=lambda overflow: overflow.messages)
    with pytest.raises(ContextOverflowError, match="returned is still too long"):
        chat.ask("a" * 60)


# Programs


@function
def interview(s, first):  # type: ignore[no-untyped-def]
    s += user(first)
    s += assistant("Well: " + gen("answer", max_tokens=5) + "!")


def test_a_conversation_goes_on_from_a_program() -> None:
    backend = MockBackend(["aaa", "bbb", "ccc"])
    state = interview.run("Hi", backend=backend)
    chat = Conversation.from_state(state)
    assert contents(chat) == ["Hi", "Well: aaa!"]
    assert chat.backend is backend
    chat.ask("And?")
    assert prompts(backend)[1] == state.text() + "<|start|>user\nAnd?<|end|>\n<|start|>assistant\n"
    check_that_tokens_only_grow(backend)
    chat.messages = chat.messages[1:]
    chat.ask("More?")
    assert prompts(backend)[2].startswith("<|start|>assistant\nWell: aaa!<|end|>\n<|start|>user\nAnd?")


def test_a_program_goes_on_from_a_conversation() -> None:
    backend, chat = start(["Hello!", "aaa", "bbb"], system="Be brief.")
    chat.ask("Hi")

    @function
    def program(s):  # type: ignore[no-untyped-def]
        s += chat.history()
        s += user("And?") + assistant(gen("x"))

    state = program.run(backend=backend)
    assert state["x"] == "aaa"
    assert [message["content"] for message in state.messages()] == [*contents(chat), "And?", "aaa"]
    assert prompts(backend)[1] + "aaa<|end|>\n" == state.text()
    back = Conversation.from_state(state)
    back.ask("Bye")
    check_that_tokens_only_grow(backend)


def test_programs_have_tool_messages() -> None:
    backend = MockBackend(["sunny"])

    @function
    def program(s):  # type: ignore[no-untyped-def]
        s += user("Rome?") + assistant("Let me see.") + tool("30 degrees", name="weather", tool_call_id="call00000")
        s += assistant(gen("x"))

    state = program.run(backend=backend)
    answer = {"role": "tool", "content": "30 degrees", "name": "weather", "tool_call_id": "call00000"}
    assert state.messages()[2] == answer
    assert "<|start|>tool\n30 degrees<|end|>\n<|start|>assistant\n" in prompts(backend)[0]
    assert Conversation.from_state(state).messages[2] == answer


def test_what_no_bridge_leads_over() -> None:
    backend, chat = start("ok")
    with pytest.raises(InvalidProgramError, match="no messages"):
        chat.history()
    chat.ask("x")

    @function
    def late(s):  # type: ignore[no-untyped-def]
        s += "text" + chat.history()

    with pytest.raises(InvalidProgramError, match="before all else"):
        late.run(backend=backend)

    @function
    def plain(s):  # type: ignore[no-untyped-def]
        s += "text" + gen("x")

    @function
    def trailing(s):  # type: ignore[no-untyped-def]
        s += user("x") + assistant(gen("x")) + "more"

    for program, reason in ((plain, "no chat messages"), (trailing, "text after its last message")):
        with pytest.raises(InvalidProgramError, match=reason):
            Conversation.from_state(program.run(backend=backend))
    with pytest.raises(InvalidProgramError, match="from_state takes no tools"):
        Conversation.from_state(interview.run("x", backend=backend), tools=[])
