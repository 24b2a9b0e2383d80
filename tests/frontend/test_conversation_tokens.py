"""What a model wrote keeps its tokens, whatever is done to the conversation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet import Conversation, LocalBackend
from ramet.frontend.backend import GenerateCall, TextSegment
from ramet.frontend.backends.mock_tokenizer import MockTokenizer
from ramet.frontend.generation import GenerateResult, Generation, Sample

from ..runtime.chat_templates import LLAMA3, QWEN, SMOLLM2, SPECIAL
from .tool_chats import TemplateBackend

WORDS = ["ab", "a", "b", " ab", "\n"]


class OddBackend(TemplateBackend):
    """Its model writes "ab" as two tokens, where the tokenizer makes one of it."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.tokenizer = MockTokenizer(merges=["ab"], special_tokens=("<s>", "</s>", *SPECIAL))
        self.num_replies = 0

    def generate(self, call: GenerateCall) -> Generation:
        self.num_replies += 1
        text = f"{self.num_replies}ab"
        ids = tuple(map(ord, text))
        sample = Sample(text, ids, kept_token_ids=ids)
        generation = Generation()
        generation.finish(GenerateResult((sample,), len(call.prompt_token_ids), 0))
        return generation


def odd_reply(number: int) -> list[int]:
    return list(map(ord, f"{number}ab"))


def contains(ids: Any, part: list[int]) -> bool:
    ids = list(ids)
    return any(ids[idx : idx + len(part)] == part for idx in range(len(ids)))


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(WORDS)),
        st.tuples(st.just("edit"), st.integers(-3, 2)),
        st.tuples(st.just("rewind"), st.integers(0, 3)),
        st.tuples(st.just("branch"), st.none()),
        st.tuples(st.just("forget"), st.integers(1, 2)),
        st.tuples(st.just("system"), st.sampled_from([None, "ab", "Be brief."])),
        st.tuples(st.just("regenerate"), st.none()),
    ),
    max_size=12,
)


@given(OPERATIONS, st.sampled_from([QWEN, LLAMA3, SMOLLM2]))
def test_replies_are_never_tokenised_again(operations: list[tuple[str, Any]], source: str) -> None:
    backend = OddBackend(source)
    chat = Conversation(backend=backend)
    for name, value in operations:
        if name == "ask":
            chat.ask(f"q{value}")
        elif name == "edit" and -chat.num_turns <= value < chat.num_turns:
            chat.edit(value, "edited ab")
        elif name == "rewind" and value <= chat.num_turns:
            chat.rewind(value)
        elif name == "branch":
            chat = chat.branch()
        elif name == "forget" and chat.num_turns > value:
            chat.messages = [message for message in chat.messages if message["role"] == "system"] + [
                message for message in chat.messages if message["role"] != "system"
            ][2 * value :]
        elif name == "system":
            chat.system = value
        elif name == "regenerate" and chat.num_turns:
            chat.regenerate()
        check(backend, chat)


def check(backend: OddBackend, chat: Conversation) -> None:
    messages = chat.messages
    if not messages or messages[-1]["role"] == "system":
        return
    waits = messages[-1]["role"] != "assistant"
    explanation = chat.explain_prompt()
    assert len(explanation.token_ids) == chat.num_tokens
    segments = backend.chat_segments(messages, add_generation_prompt=waits)
    assert explanation.text == "".join(segment.text for segment in segments)
    for message in messages:
        if message["role"] == "assistant":
            assert contains(explanation.token_ids, list(map(ord, message["content"])))


def test_the_odd_model_is_odd() -> None:
    backend = OddBackend(QWEN)
    chat = Conversation(backend=backend)
    chat.ask("x")
    assert contains(chat.explain_prompt().token_ids, odd_reply(1))
    assert not contains(backend.encode([TextSegment("1ab")], at_start=False), odd_reply(1))


@pytest.mark.model
def test_the_cache_follows_a_sampled_conversation(backend: LocalBackend) -> None:
    """At a high temperature a model often spells what it writes otherwise than the tokenizer would."""
    chat = Conversation("Be brief.", backend=backend, temperature=1.5, seed=7, max_tokens=24)
    replies = [chat.ask(question) for question in ("Name a sea.", "And a mountain?", "Why?")]
    records = chat.calls()
    for before, after, reply in zip(records, records[1:], replies, strict=False):
        assert reply.meta is not None
        assert after.meta is not None
        kept = (*before.prompt_token_ids, *reply.meta.samples[0].kept_token_ids)
        assert after.prompt_token_ids[: len(kept)] == kept
        # The last token of a reply was sampled, not computed; a stop token after it may have been.
        assert after.meta.num_cached_tokens >= len(kept) - 1
    branch = chat.branch()
    branch.edit(-1, "How come?")
    edited = branch.ask()
    assert edited.meta is not None
    assert replies[1].meta is not None
    assert edited.meta.num_cached_tokens >= replies[1].meta.num_prompt_tokens
    again = chat.regenerate(seed=8)
    assert again.meta is not None
    assert again.meta.num_computed_tokens == 1


@pytest.mark.model
def test_a_conversation_is_rendered_as_the_template_does(backend: LocalBackend) -> None:
    chat = Conversation(backend=backend, temperature=0, max_tokens=12)
    chat.ask("What is the capital of France? <|im_end|>")
    chat.ask("And of Spain?")
    segments = backend.chat_segments(chat.messages, add_generation_prompt=False)
    assert chat.explain_prompt().text == "".join(segment.text for segment in segments)
    assert chat.room == backend.llm.max_context_len - chat.num_tokens
    assert chat.explain_prompt().parts[0].text.startswith("<|im_start|>system\nYou are a helpful AI assistant")
