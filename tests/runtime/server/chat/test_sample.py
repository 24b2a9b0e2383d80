"""What becomes of a sample's text when it ends."""

from __future__ import annotations

import pytest

from ramet.runtime.outputs import FinishReason, OutputChunk
from ramet.runtime.server.chat.ask import SampleEnd, TextDelta, ToolCallBegin
from ramet.runtime.server.chat.call_reader import CallReader
from ramet.runtime.server.chat.sample import Sample
from ramet.tool_formats import TOOL_FORMATS

EOS = 2
FORMAT = next(tool_format for tool_format in TOOL_FORMATS.values() if tool_format.mark == "<tool_call>")
CALL = FORMAT.call_begin("f") + "{}" + FORMAT.call_end


def ended(text: str, reason: FinishReason, stop_reason: int | str | None) -> tuple[str, int, str]:
    """The content, the number of calls, and the finish reason."""
    sample = Sample(0, CallReader(FORMAT, ("f",)), frozenset({EOS}), is_json=False)
    token_ids = (7, EOS) if isinstance(stop_reason, int) else (7,)
    events = list(sample.take(OutputChunk("r", 0, text, token_ids, None, reason, stop_reason, True)))
    content = "".join(event.text for event in events if isinstance(event, TextDelta))
    (end,) = (event for event in events if isinstance(event, SampleEnd))
    return content, sum(isinstance(event, ToolCallBegin) for event in events), end.finish


@pytest.mark.parametrize("before", ["", "Let me look."])
@pytest.mark.parametrize("num_chars", range(2, len("<tool_call>")))
def test_a_call_that_did_not_fit_is_cut_off_and_not_an_answer(before: str, num_chars: int) -> None:
    text = before + "<tool_call>"[:num_chars]
    assert ended(text, FinishReason.STOP, EOS) == (before, 0, "length")
    assert ended(text, FinishReason.LENGTH, None) == (before, 0, "length")
    assert ended(text, FinishReason.STOP, "call") == (text, 0, "stop")


def test_a_second_call_that_did_not_fit_leaves_the_first() -> None:
    assert ended(f"{CALL}\n<tool_call", FinishReason.STOP, EOS) == ("", 1, "tool_calls")
    assert ended(f"{CALL}\nSo. <tool_call", FinishReason.STOP, EOS) == ("So.", 1, "length")


def test_a_text_may_end_with_the_first_character_of_a_mark() -> None:
    assert ended("a <", FinishReason.STOP, EOS) == ("a <", 0, "stop")
