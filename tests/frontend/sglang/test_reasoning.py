"""separate_reasoning: the answer goes on in the text, what was thought before it has a name of its own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramet as sgl
from ramet.frontend.reasoning import REASONING_FORMATS, ReasoningFormat


def test_reasoning_is_kept_apart() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("2 + 2?")
        s += sgl.assistant(sgl.separate_reasoning("So: " + sgl.gen("answer") + "!", model_type="qwen3"))
        s += sgl.user("3 + 3?")
        s += sgl.assistant(sgl.gen("next"))

    backend = sgl.MockBackend(["<think>\n2 and 2.\n</think>\n\nFour", "Six"])
    state = program.run(backend=backend)
    assert (state["answer"], state["answer_reasoning_content"]) == ("Four", "2 and 2.")
    assert [message["content"] for message in state.messages()] == ["2 + 2?", "So: Four!", "3 + 3?", "Six"]
    assert "think" not in backend.requests[1].prompt
    assert "".join(state.text_iter()) == state.text() == backend.decode(state.token_ids()) + "<|end|>\n"
    assert "".join(state.text_iter("answer")) == "Four"
    assert list(state.text_iter("answer_reasoning_content")) == ["2 and 2."]
    assert state.meta("answer").num_generated_tokens == len("<think>\n2 and 2.\n</think>\n\nFour")


@given(st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "a", " ", "\n"]), max_size=8), st.booleans())
def test_a_stream_of_an_answer_takes_nothing_back(parts: list[str], is_open: bool) -> None:
    marks = ReasoningFormat("<think>", "</think>", is_opened_by_template=is_open)
    text = "".join(parts)
    assert "".join(marks.answer_chunks(iter(parts))) == marks.split(text)[1]
    for end in range(len(text) + 1):
        assert marks.split(text)[1].startswith(marks.answer_so_far(text[:end]))
    assert text.endswith(marks.split(text)[1])


def test_reasoning_in_every_form() -> None:
    forms = {name: marks.split("I think.</think> Yes") for name, marks in REASONING_FORMATS.items()}
    assert {name for name, split in forms.items() if split == ("I think.", "Yes")} == {
        "deepseek-r1",
        "qwen3-thinking",
        "step3",
    }
    assert REASONING_FORMATS["kimi"].split("◁think▷Hm◁/think▷Yes") == ("Hm", "Yes")
    assert REASONING_FORMATS["qwen3"].split("<think>cut off") == ("cut off", "")
    assert REASONING_FORMATS["qwen3"].split(" no marks") == ("", " no marks")


def test_where_nothing_can_reason_it_is_refused() -> None:
    for model_type in (None, "gpt-oss"):
        with pytest.raises(sgl.InvalidProgramError, match="deepseek-r1, deepseek-v3, glm45, kimi"):
            sgl.separate_reasoning(sgl.gen("x"), model_type)
    for expression, message in (
        ("text", "no gen"),
        (sgl.gen("x", regex="a+"), "gen 'x': regex"),
        (sgl.gen("y") + sgl.select("x", ["a"]), "select 'x'"),
    ):
        with pytest.raises(sgl.InvalidProgramError, match=message):
            sgl.separate_reasoning(expression, "qwen3")


def test_reasoning_of_several_samples() -> None:
    replies = iter(["<think>a</think>1", "2"])

    @sgl.function
    def program(s: Any) -> None:
        s += "q" + sgl.separate_reasoning(sgl.gen("x", n=2), "qwen3")

    state = program.run(backend=sgl.MockBackend(lambda call, prompt: next(replies)))
    assert (state["x"], state["x_reasoning_content"], state.text()) == (["1", "2"], ["a", ""], "q1")
