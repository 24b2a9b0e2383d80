"""A trace as a sequence, its summary, and its file: what was saved is read back, and anything else is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.trace import (
    FinishedSequence,
    MemoryRecord,
    SequenceName,
    StepRecord,
    Trace,
    TracedPart,
    TraceFormatError,
    TraceMetadata,
    WaitingSequence,
)

COUNTS = st.integers(0, 2**40)
TEXTS = st.text(st.characters(), max_size=8)  # lone surrogates and control characters included
SECONDS = st.floats(0, 1e9)
NAMES = st.builds(SequenceName, TEXTS, COUNTS)
NAME_TUPLES = st.lists(NAMES, max_size=3).map(tuple)
PARTS = st.builds(TracedPart, TEXTS, COUNTS, COUNTS, COUNTS, st.none() | COUNTS, *[st.booleans()] * 4)
STEPS = st.builds(
    StepRecord,
    step_idx=COUNTS,
    start_time=SECONDS,
    phase_seconds=st.dictionaries(TEXTS, SECONDS, max_size=3),
    parts=st.lists(PARTS, max_size=3).map(tuple),
    admitted=NAME_TUPLES,
    preempted=NAME_TUPLES,
    finished=st.lists(st.builds(FinishedSequence, NAMES, st.none() | TEXTS), max_size=3).map(tuple),
    waiting=st.lists(st.builds(WaitingSequence, NAMES, st.none() | TEXTS, st.none() | NAMES), max_size=3).map(tuple),
    num_waiting=COUNTS,
    num_running=COUNTS,
    num_padding_rows=COUNTS,
    memory=st.builds(MemoryRecord, *[COUNTS] * 7),
)
JSON_VALUES = st.none() | st.booleans() | COUNTS | TEXTS | st.lists(COUNTS, max_size=2)
METADATA = st.builds(
    TraceMetadata,
    TEXTS,
    st.dictionaries(TEXTS, JSON_VALUES, max_size=3),
    *[st.dictionaries(TEXTS, TEXTS, max_size=2)] * 2,
)
TRACES = st.builds(Trace, METADATA, st.lists(STEPS, max_size=4))


@given(trace=TRACES)
def test_what_was_saved_is_read_back(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.jsonl"
    trace.save_jsonl(path)
    loaded = Trace.load_jsonl(path)
    assert loaded == trace
    assert len(path.read_bytes().splitlines()) == 1 + len(trace)


def test_a_trace_is_a_sequence_of_its_steps(trace: Trace) -> None:
    assert len(trace) == 6
    assert [step.step_idx for step in trace] == [0, 1, 2, 3, 4, 5]
    assert trace[-1].step_idx == 5
    assert trace[2:4] == Trace(trace.metadata, trace.steps[2:4])
    assert trace[2:4] != trace[2:5]
    assert trace[3] in trace


def changed(line: str, field: str, value: object) -> str:
    return json.dumps(json.loads(line) | {field: value})


@pytest.mark.parametrize(
    ("line_idx", "line", "message"),
    [
        (1, "", "line 1,.*Expecting value"),
        (1, "[1]", r"line 1,.*the first line=\[1\] must be of type dict"),
        (1, '{"format": "other"}', "line 1,.*format='other'.*'ramet-trace'"),
        (1, '{"format": "ramet-trace", "version": 3}', "line 1,.*version=3 .*reads versions 1 to 2"),
        (1, '{"format": "ramet-trace", "version": 1, "model": 3}', "line 1,.*model=3 must be of type str"),
        (3, '{"step_idx"', "line 3,.*is not part of a trace"),
        (3, "[" * 100_000, "line 3,.*is not part of a trace"),
        (3, "{}", "line 3,.*missing .*'admitted'"),
        (4, "\udc80", "line 4,.*is not part of a trace"),
    ],
)
def test_a_bad_line_is_named(trace: Trace, tmp_path: Path, line_idx: int, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    trace.save_jsonl(path)
    lines = path.read_text().split("\n")
    lines[line_idx - 1] = line
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    with pytest.raises(TraceFormatError, match=message) as caught:
        Trace.load_jsonl(path)
    assert "bad.jsonl" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("step_idx", True, "step_idx=True must be of type int"),
        ("step_idx", 1.0, "step_idx=1.0 must be of type int"),
        ("start_time", "now", "start_time='now' must be of type float"),
        ("phase_seconds", {"forward": None}, r"phase_seconds\['forward'\]=None must be of type float"),
        ("parts", [["A", 0, 0]], "an entry of parts has 3 values instead of 9"),
        ("parts", [["A", 0, 0, 1, "many", True, True, False, False]], "parts='many' must be of type int"),
        ("waiting", [["A", 0]], "an entry of waiting has 2 values instead of 3"),
        ("waiting", [[["A", 0], "prefix", "B"]], "waiting='B' must be of type list"),
        ("admitted", [["A", "0"]], "admitted='0' must be of type int"),
        ("finished", [[["A", 0], 7]], "finished=7 must be of type str"),
        ("memory", [1, 2], "an entry of memory has 2 values instead of 7"),
        ("extra", 1, r"missing \[\], unknown \['extra'\]"),
    ],
)
def test_a_wrong_value_is_named(trace: Trace, tmp_path: Path, field: str, value: object, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    trace.save_jsonl(path)
    lines = path.read_text().split("\n")
    lines[2] = changed(lines[2], field, value)
    path.write_text("\n".join(lines))
    with pytest.raises(TraceFormatError, match=f"line 3,.*{message}"):
        Trace.load_jsonl(path)


def test_a_file_cut_off_in_a_line_or_before_the_first_is_refused(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    trace.save_jsonl(path)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(TraceFormatError, match=r"line 7,.*cut off"):
        Trace.load_jsonl(path)
    path.write_bytes(b"")
    with pytest.raises(TraceFormatError, match="line 1, is missing"):
        Trace.load_jsonl(path)


def test_whole_numbers_are_read_as_seconds_too(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace.save_jsonl(path)
    lines = path.read_text().split("\n")
    lines[1] = changed(lines[1], "start_time", 100)
    path.write_text("\n".join(lines))
    assert Trace.load_jsonl(path) == trace


def test_summary(trace: Trace) -> None:
    summary = " ".join(trace.summary().split())
    for figures in (
        "model tiny",
        "steps 6 in 7.500 s",
        "requests 2 (2 sequences)",
        "finished 1 abort, 1 stop",
        "tokens computed 55 (52 of prompts)",
        "tokens chosen 5",  # the wasted one is not chosen
        "cached prompt tokens 48 (hit rate 48.0%)",
        "mean batch 1.17 sequences, 9.2 tokens",
        "longest queue 1",
        "preemptions 1 (8 tokens recomputed)",
        "wasted 1 sequence steps, 3 padding rows",
        "blocks without sharing 1.50 times as many",
        "slots in use 81.2%",
        "intake 20.0%, schedule 20.0%",
    ):
        assert figures in summary


def test_summary_of_nothing() -> None:
    summary = Trace(TraceMetadata()).summary()
    assert "0 in 0.000 s" in summary
    assert "not measured" in summary


def test_a_timeline_is_saved_by_the_ending_of_its_name(trace: Trace, tmp_path: Path) -> None:
    trace.save_timeline(tmp_path / "trace.SVG")
    trace.save_timeline(str(tmp_path / "trace.html"))
    assert (tmp_path / "trace.SVG").read_text(encoding="utf-8").startswith("<svg ")
    assert (tmp_path / "trace.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(ValueError, match=r"trace.png' must end in .svg or .html"):
        trace.save_timeline(tmp_path / "trace.png")


def test_a_file_of_version_1_is_read(trace: Trace, tmp_path: Path) -> None:
    """What it did not say is left open: by whom a prefix was computed, why others waited, recompute, labels."""
    path = tmp_path / "old.jsonl"
    trace.save_jsonl(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["version"] = 1
    del lines[0]["labels"]
    for line in lines[1:]:
        line["parts"] = [part[:8] for part in line["parts"]]
        line["waiting_for_prefix"] = [name for name, reason, _ in line["waiting"] if reason == "prefix"]
        line["waiting"] = [name for name, _, _ in line["waiting"]]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    old = Trace.load_jsonl(path)
    assert old.metadata == replace(trace.metadata, labels={})
    for step, kept in zip(old, trace, strict=True):
        waiting = tuple(
            WaitingSequence(each.name, "prefix" if each.reason == "prefix" else None) for each in kept.waiting
        )
        parts = tuple(replace(part, is_recomputed=False) for part in kept.parts)
        assert step == replace(kept, waiting=waiting, parts=parts)
    assert old[0].waiting_for_prefix == ()
    old.save_timeline(tmp_path / "old.svg")
    lines[1]["parts"][0].append(False)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(TraceFormatError, match=r"line 2,.* 9 values instead of 8"):
        Trace.load_jsonl(path)
