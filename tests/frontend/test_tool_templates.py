"""What a chat template makes of tools and their calls, and what is done where it knows neither."""

from __future__ import annotations

import pytest

from ramet import Conversation, InvalidProgramError

from ..runtime.chat_templates import GEMMA, LLAMA3, MISTRAL, QWEN, SMOLLM2
from .tool_chats import ROME, TemplateBackend, check_that_tokens_only_grow, weather

TEMPLATES = {"qwen": QWEN, "llama3": LLAMA3, "mistral": MISTRAL, "smollm2": SMOLLM2}


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
