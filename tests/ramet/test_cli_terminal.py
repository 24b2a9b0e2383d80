"""Plain output: escape codes only for people, wrapped text whatever the pieces, tables that add up."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.cli.report import CallRow, FailedCall, Totals, format_summary, format_table
from ramet.cli.soft_wrap import SoftWrapWriter
from ramet.cli.terminal import Terminal
from ramet.cli.wrapped_writer import WrappedWriter


class TtyStream(io.StringIO):
    def isatty(self) -> bool:
        return True


ROWS = [CallRow("gen 'a'", 100, 0, 10, 1.0), CallRow("gen 'b'", 120, 90, 30, 2.0)]


@pytest.mark.parametrize(
    ("term", "no_color", "has_colour"), [("xterm", "", True), ("dumb", "", False), ("xterm", "1", False)]
)
def test_colour_on_a_terminal(
    tty: io.StringIO, monkeypatch: pytest.MonkeyPatch, term: str, no_color: str, has_colour: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_color)
    terminal = Terminal(tty)
    terminal.line(terminal.bold("x"))
    assert tty.getvalue() == ("\x1b[1mx\x1b[0m\n" if has_colour else "x\n")


def test_no_colour_in_a_file(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal(screen)
    terminal.line(terminal.bad("x") + terminal.dim("y"))
    assert screen.getvalue() == "xy\n"


def test_wrapped_text_has_a_hanging_indent(
    screen: io.StringIO, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    writer = WrappedWriter(terminal, indent=4)
    for piece in ["one tw", "o three four five s", "ix seven", "\n\neight  "]:
        writer.write(piece)
    writer.close()
    assert screen.getvalue() == "one two three four five\n    six seven\n    eight\n"


@given(st.lists(st.text(alphabet="ab \n", max_size=6), max_size=12))
def test_wrapping_keeps_the_words_whatever_the_pieces(pieces: list[str]) -> None:
    in_pieces, at_once = io.StringIO(), io.StringIO()
    for stream, parts in ((in_pieces, pieces), (at_once, ["".join(pieces)])):
        writer = WrappedWriter(Terminal(stream), indent=2)
        for part in parts:
            writer.write(part)
        writer.close()
    assert in_pieces.getvalue() == at_once.getvalue()
    assert in_pieces.getvalue().split() == "".join(pieces).split()


def test_text_is_wrapped_only_for_a_person(
    tty: io.StringIO, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    text = "one two three four five six\n\n/help     this list"
    assert terminal.wrapped(text) == text
    assert Terminal(tty).wrapped(text, indent=2) == "one two three four\n  five six\n  \n  /help     this list"


def soft_wrapped(pieces: list[str], stream: io.StringIO) -> str:
    writer = SoftWrapWriter(Terminal(stream))
    for piece in pieces:
        writer.write(piece)
    writer.close()
    return stream.getvalue()


def test_soft_wrapping_keeps_the_layout_and_breaks_between_words(
    tty: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    pieces = ["one tw", "o three four fi", "ve\n\n    in", "dented  twice and more", "\n", "x" * 25, " end"]
    assert soft_wrapped(pieces, tty) == (
        "one two three four\nfive\n\n    indented  twice\nand more\n" + "x" * 25 + "\nend"
    )


def test_wide_characters_may_be_broken_anywhere(tty: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    assert soft_wrapped(["日本語日", "本語日本"], tty) == "日本語日本\n語日本"


def test_soft_wrapping_leaves_a_file_alone(screen: io.StringIO) -> None:
    assert soft_wrapped(["word " * 50, "\tx "], screen) == "word " * 50 + "\tx "


@given(st.lists(st.text(alphabet="ab \n", max_size=9), max_size=20))
def test_soft_wrapping_depends_on_the_text_alone(pieces: list[str]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("COLUMNS", "20")
        in_pieces, at_once = soft_wrapped(pieces, TtyStream()), soft_wrapped(["".join(pieces)], TtyStream())
    assert in_pieces == at_once
    assert in_pieces.split() == "".join(pieces).split()
    assert all(len(line) <= 20 or " " not in line.strip() for line in in_pieces.split("\n"))


def test_totals_add_up() -> None:
    totals = Totals.of(ROWS, elapsed_s=4.0)
    assert (totals.num_prompt_tokens, totals.num_cached_tokens, totals.num_generated_tokens) == (220, 90, 40)
    assert totals.hit_rate == pytest.approx(90 / 220)
    assert totals.tokens_per_s == 10.0
    assert format_summary(totals) == (
        "2 calls, 220 prompt tokens: 90 from the cache (41%), 130 computed; 40 generated in 4.0 s (10.0 tok/s)"
    )


def test_totals_of_nothing() -> None:
    totals = Totals.of([], elapsed_s=0.0)
    assert (totals.hit_rate, totals.tokens_per_s) == (0.0, 0.0)


def test_table_has_a_line_per_call_and_the_sums(terminal: Terminal) -> None:
    lines = format_table(ROWS, Totals.of(ROWS, 4.0), terminal).splitlines()
    assert lines[0].split() == ["call", "prompt", "cached", "computed", "generated", "seconds"]
    assert lines[3].split() == ["gen", "'b'", "120", "90", "30", "30", "2.00"]
    assert lines[-1].split() == ["all", "220", "90", "130", "40", "4.00"]
    assert len({len(line) for line in lines}) == 1


def test_long_labels_are_cut(terminal: Terminal) -> None:
    row = CallRow("x" * 200, 1, 0, 0, 0.0)
    assert len(format_table([row], Totals.of([row], 0.0), terminal).splitlines()[0]) < 105


def test_a_table_fits_a_terminal(tty: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    calls = [CallRow("x" * 200, 1, 0, 0, 0.0), FailedCall("y" * 200, "z" * 200)]
    lines = format_table(calls, Totals.of([], 0.0), Terminal(tty)).splitlines()
    assert {len(line) for line in lines} == {80}
