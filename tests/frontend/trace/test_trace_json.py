"""Any trace comes back from JSON as it was, however its texts and prompts are related."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet import CallTrace, ErrorTrace, ProgramTrace, ProgramTraceFormatError, save_traces
from ramet.frontend.calls import CallMeta, ChoiceScore
from ramet.frontend.choices import ChoiceLogprobs
from ramet.frontend.generation import Sample, TokenLogprob
from ramet.frontend.trace.program_trace import TokenText

TEXT = st.text(st.characters(categories=None) | st.sampled_from("\ud83d\ude00"), max_size=12)
JSON_TEXT = st.text(max_size=12)
FLOAT = st.floats(allow_nan=False)
TIME = st.floats(allow_nan=False, allow_infinity=False)
IDS = st.lists(st.integers(0, 9), max_size=8).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | JSON_TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(JSON_TEXT, inner, max_size=2),
    max_leaves=4,
)
OBJECT = st.dictionaries(JSON_TEXT, JSON, max_size=2)
ERROR = st.builds(ErrorTrace, TEXT, TEXT, st.lists(TEXT, max_size=2).map(tuple), st.none() | TEXT)
LOGPROB = st.builds(TokenLogprob, st.integers(0, 9), FLOAT, st.lists(st.tuples(st.integers(0, 9), FLOAT)).map(tuple))
SAMPLE = st.builds(
    Sample,
    TEXT,
    IDS,
    IDS,
    stop_reason=st.none() | TEXT | st.integers(0, 9),
    logprobs=st.none() | st.lists(LOGPROB, max_size=2).map(tuple),
    complete=st.none() | st.booleans(),
)
CHOICE = st.builds(ChoiceScore, st.builds(ChoiceLogprobs, TEXT, IDS, st.lists(FLOAT).map(tuple), FLOAT), FLOAT, FLOAT)
META = st.builds(
    CallMeta,
    num_prompt_tokens=st.integers(0, 9),
    num_cached_tokens=st.integers(0, 9),
    num_generated_tokens=st.integers(0, 9),
    finish_reason=TEXT,
    stop_reason=st.none() | TEXT | st.integers(0, 9),
    samples=st.lists(SAMPLE, max_size=2).map(tuple),
    choices=st.lists(CHOICE, max_size=2).map(tuple),
    first_token_s=st.none() | TIME,
    duration_s=TIME,
    complete=st.none() | st.booleans(),
    queued_s=st.none() | TIME,
)


@st.composite
def traces(draw: st.DrawFn) -> ProgramTrace:
    calls: list[CallTrace] = []
    for call_id in range(draw(st.integers(0, 4))):
        parents = draw(st.lists(st.integers(0, max(0, call_id - 1)), max_size=2)) if call_id else []
        ids = draw(IDS)
        if calls and draw(st.booleans()):
            ids = (*calls[-1].prompt_token_ids, *calls[-1].output_token_ids, *ids)
        calls.append(
            CallTrace(
                call_id=call_id,
                kind=draw(st.sampled_from(["text", "gen", "select", "fork", "join"])),
                name=draw(st.none() | TEXT),
                status=draw(st.sampled_from(["done", "waiting", "running", "unparsed", "failed", "cancelled"])),
                parent_ids=tuple(parents),
                branch=draw(IDS),
                source=draw(TEXT),
                text=draw(TEXT),
                prompt_token_ids=ids,
                prompt_text=draw(st.none() | TEXT) if ids else None,
                params=draw(OBJECT),
                value=draw(JSON),
                meta=draw(st.none() | META),
                asked_s=draw(TIME),
                ended_s=draw(st.none() | TIME),
                error=draw(st.none() | ERROR),
            )
        )
    return ProgramTrace(
        draw(TEXT),
        draw(TEXT),
        draw(st.sampled_from(["running", "done", "failed", "raised"])),
        draw(OBJECT),
        draw(TIME),
        draw(TIME),
        draw(st.none() | ERROR),
        tuple(calls),
        tuple(draw(st.lists(OBJECT, max_size=2))),
        draw(OBJECT),
        tuple(draw(st.lists(st.builds(TokenText, st.integers(0, 9), TEXT, st.booleans()), max_size=2))),
    )


@given(traces())
def test_every_trace_comes_back_as_it_was(trace: ProgramTrace) -> None:
    text = trace.to_json()
    assert text.isascii()
    assert "\n" not in text
    assert ProgramTrace.from_json(text) == trace


def test_infinities_come_back() -> None:
    choice = ChoiceScore(ChoiceLogprobs("a", (1,), (-math.inf,)), -math.inf, 0.0)
    meta = CallMeta(1, 0, 0, "select", None, (), (choice,), None, 0.5)
    trace = ProgramTrace("f", "1", calls=(CallTrace(call_id=0, kind="select", meta=meta),))
    assert ProgramTrace.from_json(trace.to_json()) == trace


def test_prompts_that_grow_are_written_once() -> None:
    text = "word " * 1000
    calls = [
        CallTrace(
            call_id=idx,
            kind="gen",
            parent_ids=(idx - 1,) if idx else (),
            prompt_token_ids=(*range(1000), *range(idx)),
            prompt_text=text + "x" * idx,
        )
        for idx in range(50)
    ]
    trace = ProgramTrace("f", "1", calls=tuple(calls))
    assert len(trace.to_json()) < len(ProgramTrace("f", "1", calls=tuple(calls[:1])).to_json()) + 50 * 300
    assert ProgramTrace.from_json(trace.to_json()) == trace


def test_several_programs_in_a_file(tmp_path: Path, hostile_trace: ProgramTrace) -> None:
    path = tmp_path / "traces.jsonl"
    other = ProgramTrace("other", "2")
    save_traces([hostile_trace, other], path)
    assert ProgramTrace.load(path) == [hostile_trace, other]
    other.save(path)
    assert ProgramTrace.load(path) == [other]


def test_a_file_that_was_cut_off_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    save_traces([ProgramTrace("a", "1"), ProgramTrace("b", "2")], path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ProgramTraceFormatError, match=r"traces\.jsonl, line 2: it is cut off"):
        ProgramTrace.load(path)


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.jsonl, \.html, \.txt"):
        ProgramTrace("a", "1").save(tmp_path / "trace.pdf")


def tampered(**changes: object) -> str:
    """Two calls, the second after the first, with some fields of the second changed."""
    calls = [
        CallTrace(call_id=0, kind="gen", prompt_token_ids=(1, 2), prompt_text="ab"),
        CallTrace(call_id=1, kind="gen", parent_ids=(0,), prompt_token_ids=(1, 2, 3), prompt_text="abc"),
    ]
    value = json.loads(ProgramTrace("f", "1", calls=tuple(calls)).to_json())
    value["calls"][1] |= changes
    return json.dumps(value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_token_ids": [-1, 3]}, "how many tokens of call 0 it shares"),
        ({"prompt_token_ids": [3, 3]}, "how many tokens of call 0 it shares"),
        ({"prompt_text": [-1, "c"]}, "how many characters of call 0 it shares"),
        ({"prompt_text": [3, "c"]}, "how many characters of call 0 it shares"),
        ({"prompt_text": [1, {"pieces": [1]}]}, r"prompt_text\[1\] must be str"),
        ({"parent_ids": [7]}, "must be ids of the 2 calls"),
        ({"parent_ids": [-1]}, "must be ids of the 2 calls"),
        ({"parent_ids": [10**30]}, "must be int"),
        ({"num_branches": -1}, "must be a count"),
        ({"num_branches": 10**12}, "at most 1,000,000 can be shown"),
        ({"asked_s": "nan"}, "must be a time in seconds"),
        ({"asked_s": "inf"}, "must be a time in seconds"),
        ({"asked_s": 10**400}, "must be float"),
        ({"asked_s": math.nan}, "it has NaN"),
        ({"asked_s": math.inf}, "it has Infinity"),
        ({"text": {"pieces": ["a"], "more": 1}}, "must be str"),
        ({"text": 1}, "must be str"),
    ],
)
def test_what_nobody_wrote_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ProgramTraceFormatError, match=message):
        ProgramTrace.from_json(tampered(**changes))


@pytest.mark.parametrize("text", ['{"a": 1e999}', "[" * 100_000, "9" * 5000, b"\xff"])
def test_what_is_no_trace_is_refused(text: str | bytes) -> None:
    with pytest.raises(ProgramTraceFormatError):
        ProgramTrace.from_json(text)


@pytest.mark.parametrize("start_time", [1e300, -1e18, 1e12])
def test_a_page_has_any_date(tmp_path: Path, start_time: float) -> None:
    path = tmp_path / "page.html"
    ProgramTrace("f", "1", start_time=start_time).save(path)
    assert "after 1970" in path.read_text(encoding="utf-8")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    save_traces(ProgramTrace("a", "1"), path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_traces([ProgramTrace("b", "2"), ProgramTrace("c", "3", arguments={"x": [math.nan]})], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
