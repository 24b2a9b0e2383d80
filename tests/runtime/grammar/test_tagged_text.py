"""Texts in which tagged parts are held to schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ramet import LLM
from ramet.runtime.grammar.interface import GrammarState
from ramet.runtime.grammar.tagged_text import Tag, TaggedText
from ramet.runtime.request import Request
from ramet.sampling_params import SamplingParams
from ramet.tool_formats import TOOL_FORMATS

pytestmark = pytest.mark.model

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "to": {"$ref": "#/$defs/to"}},
        "$defs": {"to": {"enum": [1, 2]}},
        "required": ["city"],
        "additionalProperties": False,
    }
)
HERMES, LLAMA3 = TOOL_FORMATS["hermes"], TOOL_FORMATS["llama3"]
CALL = HERMES.write([("weather", {"city": "Rome", "to": 2})])
WIND = HERMES.write([("wind", {"city": "é😀"})])
LLAMA_CALL = LLAMA3.write([("weather", {"city": "Rome"})])


class Texts:
    """What a grammar takes."""

    def __init__(self, llm: LLM, text: TaggedText) -> None:
        request = Request(
            request_id="x", prompt_token_ids=(1,), sampling_params=SamplingParams(), constraint=text.spec()
        )
        grammar = llm.prepare(request).grammar
        assert grammar is not None
        self._grammar = grammar
        self._tokenizer = llm.tokenizer

    def _state(self, text: str) -> GrammarState | None:
        state = self._grammar.new_state()
        ids = self._tokenizer.encode(text, is_text_start=False)
        return state if state.try_accept(ids) == len(ids) else None

    def begins(self, text: str) -> bool:
        return self._state(text) is not None

    def takes(self, text: str) -> bool:
        state = self._state(text)
        return state is not None and state.is_accepting

    def pieces(self, text: str) -> Iterator[bool]:
        """Whether every beginning of a text is one."""
        return (self.begins(text[:end]) for end in range(len(text)))


def hermes(**options: bool | str) -> TaggedText:
    tags = tuple(Tag(HERMES.call_begin(name), SCHEMA, HERMES.call_end) for name in ("weather", "wind"))
    return TaggedText(tags, HERMES.mark, **options)  # type: ignore[arg-type]


def test_free_text_and_calls(smollm2: LLM) -> None:
    texts = Texts(smollm2, hermes())
    free = ("", "Hello <tool", "a < b > c", '{"x": 1}', "東京 🎉")
    for text in (*free, CALL, f"So: {CALL}", f"{CALL}\n{WIND}", f"{CALL} and"):
        assert texts.takes(text)
        assert all(texts.pieces(text))
    for text in ("<tool_call>", CALL[:-1], f"{CALL}{WIND[:40]}"):
        assert texts.begins(text)
        assert not texts.takes(text)
    for text in ("<tool_call> x", "<tool_call>\nx", CALL.replace("weather", "fly"), CALL.replace('"to": 2', '"to": 3')):
        assert not texts.begins(text)


def test_one_call_at_most(smollm2: LLM) -> None:
    texts = Texts(smollm2, hermes(is_single=True))
    assert texts.takes(f"So: {CALL}")
    assert texts.takes("none")
    assert not texts.begins(f"{CALL}\n")


def test_calls_that_are_required(smollm2: LLM) -> None:
    texts = Texts(smollm2, hermes(is_required=True))
    assert texts.takes(CALL)
    assert texts.takes(f"{CALL}\n{WIND}")
    assert not texts.takes("")
    for text in ("So", f"{CALL} and", f"{CALL}{WIND}"):
        assert not texts.begins(text)
    single = Texts(smollm2, hermes(is_required=True, is_single=True))
    assert single.takes(WIND)
    assert not single.begins(f"{CALL}\n")


def test_a_call_or_json_of_another_schema(smollm2: LLM) -> None:
    texts = Texts(smollm2, hermes(otherwise='{"type": "integer"}'))
    for text in (CALL, "12"):
        assert texts.takes(text)
    for text in ("So", f"12 {CALL}", f"{CALL}12"):
        assert not texts.begins(text)
    assert not texts.takes("")


def test_calls_that_are_the_whole_text(smollm2: LLM) -> None:
    tag = Tag(LLAMA3.call_begin("weather"), SCHEMA, LLAMA3.call_end)
    texts = Texts(smollm2, TaggedText((tag,), LLAMA3.mark, is_at_start=True, is_single=True))
    for text in (
        "",
        "So",
        '{"na',
        '{"names": 3}',
        '{"name": 3}',
        '{ "name": "x"}',
        LLAMA_CALL,
        f"So: {LLAMA_CALL}",
        "🎉",
    ):
        assert texts.takes(text)
    for text in ('{"name": "fly', f"{LLAMA_CALL} and", f"{LLAMA_CALL}\n"):
        assert not texts.begins(text)


def test_a_request_that_may_be_cut_off_is_closed_where_it_can_be(smollm2: LLM) -> None:
    def closes(max_tokens: int) -> bool:
        sampling = SamplingParams(max_tokens=max_tokens)
        request = Request(
            request_id="x",
            prompt_token_ids=(1,),
            sampling_params=sampling,
            constraint=hermes(is_required=True).spec(),
            closes=True,
        )
        return smollm2.prepare(request).closes

    assert (closes(5), closes(60)) == (False, True)
