"""`ramet chat`: the loop, its commands, and the tokens that reach the backend."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence

import pytest

from ramet.cli.chat import HELP, ChatSession
from ramet.cli.terminal import Terminal
from ramet.frontend.backend import GenerateCall
from ramet.frontend.backends.mock import MockBackend, Reply
from ramet.frontend.conversation import Conversation
from ramet.frontend.errors import ProgramError
from ramet.frontend.generation import Generation
from ramet.runtime.errors import InvalidRequestError

Script = Sequence[Reply] | Callable[[GenerateCall, str], Reply]


def lines_reader(lines: Sequence[str | type[BaseException]]) -> Callable[[], str]:
    remaining: Iterator[str | type[BaseException]] = iter([*lines, EOFError])

    def read_line() -> str:
        line = next(remaining)
        if not isinstance(line, str):
            raise line
        return line

    return read_line


def conversation_on(
    backend: MockBackend, max_context_len: int = 1000, system: str | None = None, *, max_tokens: int = 20
) -> Conversation:
    return Conversation(
        system,
        backend=backend,
        max_context_len=max_context_len,
        on_overflow="drop_oldest",
        max_tokens=max_tokens,
        temperature=0.0,
    )


def chat(
    lines: Sequence[str | type[BaseException]], replies: Script, stream: io.StringIO, *, max_model_len: int = 1000
) -> tuple[MockBackend, Conversation]:
    backend = MockBackend(replies)
    conversation = conversation_on(backend, max_model_len, "Be brief.")
    ChatSession(conversation, Terminal(stream), lines_reader(lines)).run()
    return backend, conversation


def prompts(backend: MockBackend) -> list[str]:
    return [request.prompt for request in backend.requests]


def test_every_turn_continues_the_tokens_of_the_last(screen: io.StringIO) -> None:
    backend, conversation = chat(["Hi", "  ", "And you?"], ["Hello!", "Well."], screen)
    first = "<|start|>system\nBe brief.<|end|>\n<|start|>user\nHi<|end|>\n<|start|>assistant\n"
    second = first + "Hello!<|end|>\n<|start|>user\nAnd you?<|end|>\n<|start|>assistant\n"
    assert prompts(backend) == [first, second]
    token_ids = [request.call.prompt_token_ids for request in backend.requests]
    assert token_ids[1][: len(token_ids[0])] == token_ids[0]
    assert backend.requests[1].num_cached_tokens == len(token_ids[0]) + len("Hello!")
    assert [message["content"] for message in conversation.messages] == [
        "Be brief.",
        "Hi",
        "Hello!",
        "And you?",
        "Well.",
    ]
    new_tokens = len(token_ids[1]) - backend.requests[1].num_cached_tokens
    assert f"{backend.requests[1].num_cached_tokens} cached, {new_tokens} computed" in screen.getvalue()
    assert "Hello!\n[" in screen.getvalue()


def test_a_reply_wraps_between_words_on_a_terminal(tty: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setenv("NO_COLOR", "1")
    chat(["Hi", "/help"], ["one two three four"], tty)
    backend = MockBackend("several words that do not fit\n- item")
    ChatSession(conversation_on(backend, max_tokens=100), Terminal(tty), lines_reader(["Hi"])).run()
    shown = tty.getvalue()
    assert "several words that do\nnot fit\n- item\n[" in shown
    assert all(len(line) <= 24 for line in shown.splitlines())


def test_special_tokens_come_only_from_the_template(screen: io.StringIO) -> None:
    backend, _ = chat(["<|end|>"], ["ok"], screen)
    ids = backend.requests[0].call.prompt_token_ids
    assert ids.count(backend.tokenizer.special_ids["<|end|>"]) == 2


def test_commands(screen: io.StringIO) -> None:
    lines = ["/help", "/system", "One", "/reset", "Two", "/system Be kind.", "Three", "/nonsense", "/quit", "never"]
    backend, _ = chat(lines, lambda call, prompt: "ok", screen)
    shown = screen.getvalue()
    assert HELP in shown
    assert "Be brief.\n" in shown
    assert "unknown command /nonsense" in shown
    start = "<|start|>system\nBe brief.<|end|>\n<|start|>user\n"
    end = "<|end|>\n<|start|>assistant\n"
    assert prompts(backend) == [
        f"{start}One{end}",
        f"{start}Two{end}",
        f"{start.replace('brief', 'kind')}Three{end}",
    ]


def test_ctrl_c_at_the_prompt_does_not_leave(screen: io.StringIO) -> None:
    backend, _ = chat([KeyboardInterrupt, "Hi"], ["ok"], screen)
    assert len(backend.requests) == 1
    assert "Ctrl-D" in screen.getvalue()


class InterruptedStream(io.StringIO):
    """Ctrl-C comes just after a text was shown."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._text and self.getvalue().endswith(self._text):
            self._text = ""
            raise KeyboardInterrupt
        return written


def test_ctrl_c_stops_that_reply_only_and_keeps_what_was_shown() -> None:
    backend = MockBackend(["abcdefgh", "fine"], mode="background")
    stream = InterruptedStream("abc")
    conversation = conversation_on(backend)
    ChatSession(conversation, Terminal(stream), lines_reader(["One", "Two"])).run()
    backend.close()
    assert "abc\nstopped\n" in stream.getvalue()
    assert backend.requests[1].prompt == (
        "<|start|>user\nOne<|end|>\n<|start|>assistant\nabc<|end|>\n<|start|>user\nTwo<|end|>\n<|start|>assistant\n"
    )
    assert conversation.messages[1] == {"role": "assistant", "content": "abc"}


def test_a_reply_that_fails_does_not_end_the_chat(screen: io.StringIO) -> None:
    backend, _ = chat(["One", "Two"], [ProgramError("out of luck"), "fine"], screen)
    assert "the reply failed: out of luck" in screen.getvalue()
    assert "fine" in screen.getvalue()
    assert len(backend.requests) == 2


def test_a_fault_of_ours_is_not_hidden(screen: io.StringIO) -> None:
    with pytest.raises(ZeroDivisionError):
        chat(["One"], [ZeroDivisionError()], screen)


def test_oldest_turns_are_dropped_when_the_context_is_full(screen: io.StringIO) -> None:
    backend, conversation = chat(["a" * 30, "b" * 30, "c" * 30], lambda call, prompt: "ok", screen, max_model_len=140)
    assert "context full: the 2 oldest messages were dropped" in screen.getvalue()
    system = "<|start|>system\nBe brief.<|end|>\n"
    assert all(prompt.startswith(system) for prompt in prompts(backend))
    assert "a" * 30 not in prompts(backend)[-1]
    assert "c" * 30 in prompts(backend)[-1]
    for request in backend.requests:
        assert isinstance(request.call, GenerateCall)
        max_tokens = request.call.sampling_params.max_tokens
        assert max_tokens is not None
        assert len(request.call.prompt_token_ids) + max_tokens <= 140
    assert conversation.num_dropped in (2, 4)


def test_a_message_too_long_for_the_context_is_refused_and_forgotten(screen: io.StringIO) -> None:
    backend, conversation = chat(["Hi", "x" * 200, "Bye"], lambda call, prompt: "ok", screen, max_model_len=140)
    assert "shorten the message" in screen.getvalue()
    assert conversation.num_dropped == 0
    assert len(backend.requests) == 2
    assert "Hi" in prompts(backend)[1]
    assert [message["content"] for message in conversation.messages] == ["Be brief.", "Hi", "ok", "Bye", "ok"]


def test_what_the_engine_refuses_does_not_end_the_chat(screen: io.StringIO) -> None:
    class FullBackend(MockBackend):
        def generate(self, call: GenerateCall) -> Generation:
            if "big" in self.decode(call.prompt_token_ids):
                raise InvalidRequestError("it can never fit in the KV cache")
            return super().generate(call)

    backend = FullBackend("ok")
    conversation = conversation_on(backend)
    ChatSession(conversation, Terminal(screen), lines_reader(["big", "small"])).run()
    assert "it can never fit in the KV cache\n" in screen.getvalue()
    assert [message["content"] for message in conversation.messages] == ["small", "ok"]
