"""What a notebook shows of a state: at any time, without waiting, and not if nobody wants it."""

from __future__ import annotations

import pytest

from ramet import MockBackend, ProgramState, function, gen


@function
def ask(s: ProgramState, text: str) -> None:
    s += text + gen("answer") + "." + gen("more")


def html_of(state: ProgramState) -> str:
    shown = state._repr_html_()
    assert shown is not None
    return shown


def test_generated_text_is_apart_from_written_text() -> None:
    shown = html_of(ask.run(text="<b>Hi</b> ", backend=MockBackend("there")))
    assert "&lt;b&gt;Hi&lt;/b&gt; <span" in shown
    assert shown.count(">there</span>") == 2
    assert "<b>ask</b> · done · 2 calls" in shown
    assert "<script" not in shown


def test_a_running_state_is_shown_as_far_as_it_has_come() -> None:
    backend = MockBackend("there", mode="manual")
    state = ask.run(text="Hi ", backend=backend)
    backend.requests[0].push("the")
    shown = html_of(state)
    assert ">the</span></pre>" in shown
    assert "running · 0 of 2 calls" in shown


def test_a_failure_is_told() -> None:
    shown = html_of(ask.run(text="Hi ", backend=MockBackend([ValueError("<no> luck")])))
    assert "&lt;no&gt; luck" in shown
    assert "failed" in shown


def test_of_a_long_text_the_end_is_shown() -> None:
    shown = html_of(ask.run(text="x" * 50_000 + "END", backend=MockBackend("ok")))
    assert len(shown) < 22_000
    assert "…x" in shown
    assert "END<span" in shown


@pytest.mark.parametrize("value", ["0", "off", "False"])
def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("RAMET_HTML_REPR", value)
    assert ask.run(text="Hi", backend=MockBackend("ok"))._repr_html_() is None
