"""Scripts that say what a text must be, or where it ends: regular expressions, types, characters, other scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

import ramet as sgl

IP_ADDRESS = r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"
CHARACTER = (
    r'\{"name": "[A-Za-z ]{1,16}", "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)", '
    r'"patronus": "[a-z ]{1,12}", "age": [0-9]{1,2}\}'
)
CHINESE = r"[\u4e00-\u9fff]{1,6}[。！]"


@pytest.fixture
def model(smollm2: sgl.LLM) -> Iterator[sgl.LocalBackend]:
    with sgl.LocalBackend(smollm2) as backend:
        sgl.set_default_backend(backend)
        yield backend
        sgl.set_default_backend(None)


@sgl.function
def regular_expression_gen(s: Any) -> None:
    s += "Q: What is the IP address of the Google DNS servers?\n"
    s += "A: " + sgl.gen("answer", temperature=0, regex=IP_ADDRESS)


@sgl.function
def character_gen(s: Any, name: str) -> None:
    s += name + " is a character in Harry Potter. Fill in the following information.\n"
    s += sgl.gen("json_output", max_tokens=100, regex=CHARACTER)


def test_a_scripted_reply_must_match() -> None:
    state = regular_expression_gen.run(backend=sgl.MockBackend("8.8.8.8"))
    assert state.text().endswith("A: 8.8.8.8")
    failing = regular_expression_gen.run(backend=sgl.MockBackend("no address"))
    with pytest.raises(sgl.GenerationError, match="must match the regex"):
        failing["answer"]


def test_a_stop_regex_ends_a_text_before_its_match() -> None:
    @sgl.function
    def list_items(s: Any) -> None:
        s += "Two fruits:\n1." + sgl.gen("items", stop_regex=[r"\n3[.)]", r"[A-Z]{4,}"])
        s += "\nDone."

    backend = sgl.MockBackend(" figs\n2. plums\n3) pears")
    state = list_items.run(backend=backend)
    assert state["items"] == " figs\n2. plums"
    assert state.text() == "Two fruits:\n1. figs\n2. plums\nDone."
    assert state.get_meta_info("items")["finish_reason"] == {"type": "stop", "matched": r"\n3[.)]"}
    assert backend.decode(state.token_ids()) + "\nDone." == state.text()


def test_other_scripts_come_whole_while_they_stream() -> None:
    @sgl.function
    def greets(s: Any) -> None:
        s += "用中文问好：" + sgl.gen("greeting", regex=CHINESE)

    state = greets.run(stream=True, backend=sgl.MockBackend("你好世界！"))
    assert "".join(state.text_iter("greeting")) == state["greeting"] == "你好世界！"


@pytest.mark.model
def test_regular_expressions_on_a_model(model: sgl.LocalBackend) -> None:
    state = regular_expression_gen.run()
    assert re.fullmatch(IP_ADDRESS, state["answer"])
    states = character_gen.run_batch([{"name": "Hermione"}, {"name": "Draco"}], temperature=0.1, seed=3)
    records = [json.loads(state["json_output"]) for state in states]
    assert all(re.fullmatch(CHARACTER, state["json_output"]) for state in states)
    assert all(record.keys() == {"name", "house", "patronus", "age"} for record in records)


@pytest.mark.model
def test_chinese_on_a_model(model: sgl.LocalBackend) -> None:
    @sgl.function
    def greets(s: Any) -> None:
        s += "用中文问好：" + sgl.gen("greeting", regex=CHINESE, max_tokens=32)

    state = greets.run(temperature=0, stream=True)
    pieces = list(state.text_iter("greeting"))
    assert "".join(pieces) == state["greeting"]
    assert re.fullmatch(CHINESE, state["greeting"])
    assert "\ufffd" not in "".join(pieces)


@pytest.mark.model
def test_a_conversation_on_a_model_goes_on_from_the_cache(model: sgl.LocalBackend) -> None:
    @sgl.function
    def multi_turn(s: Any, first: str, second: str) -> None:
        s += sgl.system("You are a helpful assistant.")
        s += sgl.user(first)
        s += sgl.assistant(sgl.gen("answer_1", max_tokens=16))
        s += sgl.user(second)
        with s.assistant():
            s += "It is " + sgl.select("kind", choices=["a city", "a river"]) + "."

    sgl.flush_cache()
    state = multi_turn.run("What is the capital of France?", "What is that?", temperature=0, stop_regex=r"\n+")
    assert "\n" not in state["answer_1"]
    assert [message["role"] for message in state.messages()] == ["system", "user", "assistant", "user", "assistant"]
    first, second = state.get_meta_info("answer_1"), state.get_meta_info("kind")
    assert second["cached_tokens"] >= first["prompt_tokens"] + first["completion_tokens"] - 2
    assert second["choices"] == ["a city", "a river"]
    assert model.decode(state.token_ids()).startswith("<|im_start|>system\nYou are")
    assert sgl.get_server_info()["model"] == "smollm2"


@pytest.mark.model
def test_the_same_script_gives_the_same_text_however_it_is_run(model: sgl.LocalBackend) -> None:
    @sgl.function
    def counts(s: Any, start: int) -> None:
        s += f"{start}, {start + 1}, {start + 2}," + sgl.gen("rest", max_tokens=5, temperature=0)

    alone = [counts.run(start).text() for start in (1, 4)]
    batch = [state.text() for state in counts.run_batch([(1,), (4,)], num_threads=2)]
    streamed = ["".join(counts.run(start, stream=True).text_iter()) for start in (1, 4)]
    lazily = [state.text() for state in counts.run_batch([(1,), (4,)], generator_style=True, num_threads="auto")]
    assert alone == batch == streamed == lazily
