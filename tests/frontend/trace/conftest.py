"""Traces that tests of several modules look at."""

from __future__ import annotations

import pytest

from ramet import MockBackend, ProgramState, ProgramTrace, function, gen, select, user

HOSTILE = "</script><script>alert(1)</script> <b>\u2028\u202e\x00\x1b[31m \ud800 &amp; \"'"
"""What must be shown as it is, or spelt out."""


@function
def hostile(s: ProgramState, text: str) -> None:
    s += user(text)
    with s.assistant():
        s += "Sort: " + select(text, choices=[text, "no"])
        for fork in s.fork(2):
            fork += gen(text, max_tokens=400, logprobs=1)
    raise ValueError(text)


@pytest.fixture
def hostile_trace() -> ProgramTrace:
    """Of a run that has bad text in every place."""
    return hostile.run(text=HOSTILE, backend=MockBackend(HOSTILE), on_error="return").trace()
