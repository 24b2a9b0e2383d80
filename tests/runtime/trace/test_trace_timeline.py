"""The picture of a trace: what is where, that it is valid XML whatever the names, and that its size stays bounded."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from ramet.runtime.trace import (
    FinishedSequence,
    SequenceName,
    StepRecord,
    Trace,
    TracedPart,
    TraceMetadata,
    WaitingSequence,
)
from ramet.runtime.trace.grid import MAX_COLUMNS, MAX_ROWS, build_grid
from ramet.runtime.trace.timeline import timeline_html, timeline_svg

SVG = "{http://www.w3.org/2000/svg}"
MakeStep = Callable[..., StepRecord]


def parse(trace: Trace) -> ElementTree.Element:
    return ElementTree.fromstring(timeline_svg(trace.metadata, trace.steps))


def titled(root: ElementTree.Element, title: str) -> list[ElementTree.Element]:
    """The elements whose title, on one line, contains the text."""
    return [
        parent
        for parent in root.iter()
        for child in parent
        if child.tag == f"{SVG}title" and title in (child.text or "").replace("\n", " ")
    ]


def the_cell(root: ElementTree.Element, title: str) -> ElementTree.Element:
    (element,) = titled(root, title)
    return element


def has_one_cell(root: ElementTree.Element, title: str) -> bool:
    return len(titled(root, title)) == 1


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def box(element: ElementTree.Element) -> tuple[float, float, float, float]:
    x, y, width, height = (float(element.attrib[name]) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def test_every_kind_of_cell_is_where_it_belongs(trace: Trace) -> None:
    root = parse(trace)
    prompt = the_cell(root, "first/0, step 0 32 tokens of the prompt or behind it computed (positions 0 to 31)")
    second = "second/1 (a long label)"
    waits_for_prefix = the_cell(
        root, f"{second}, step 0 waited in the queue: 1 step for its prefix, which first/0 was computing"
    )
    waits = the_cell(root, f"{second}, step 1 waited in the queue: 1 step for blocks: the cache had no room")
    admitted = the_cell(root, f"{second}, step 2 5 tokens")
    preempted = the_cell(root, "first/0, steps 2 to 3 waited in the queue: 2 steps for blocks: the cache had no room")
    again = the_cell(root, "first/0, step 4 8 tokens computed again after a preemption (positions 32 to 39) admitted")
    decode = the_cell(root, f"{second}, step 3 1 generated tokens computed (positions 21 to 21) ended: stop")
    wasted = the_cell(root, f"{second}, step 4 was computed in vain: it had ended, or the step failed: 1 step")
    cells = (prompt, waits_for_prefix, waits, admitted, preempted, again, decode, wasted)
    assert [cell.get("class") for cell in cells] == [
        "prompt",
        "prefix",
        "wait",
        "prompt",
        "wait",
        "recompute",
        "decode",
        "wasted",
    ]
    assert "preempted: its blocks went to others" in (preempted[0].text or "")
    # In a column: same x. In a row: same y. Steps go from left to right, sequences from top to bottom.
    assert box(prompt)[0] == box(waits_for_prefix)[0] < box(waits)[0] < box(admitted)[0] == box(preempted)[0]
    assert box(admitted)[0] < box(decode)[0] < box(wasted)[0]
    assert box(prompt)[1] == box(preempted)[1] < box(admitted)[1] == box(wasted)[1]
    assert box(preempted)[2] == box(decode)[2]


def test_token_counts_cached_counts_and_marks_are_drawn(trace: Trace) -> None:
    root = parse(trace)
    assert {"32", "7", "5", "8", "16", "first", "a lon…label second", "step"} <= set(texts(root))
    assert "1" in texts(root)  # the step's number: decodes of one token have no figure
    marks = [element.get("class", "") for element in root.iter() if element.tag in (f"{SVG}rect", f"{SVG}path")]
    marks = [css_class for css_class in marks if css_class.endswith(" mark")]
    assert sorted(marks) == ["cached mark", "cached mark", "failed mark", "finish mark", "preempted mark"]


def test_a_sequence_that_holds_blocks_and_is_not_computed_is_paused(make_step: MakeStep) -> None:
    first, second = TracedPart("a", 0, 0, 4, num_cached_tokens=0), TracedPart("b", 0, 0, 4, num_cached_tokens=0)
    steps = [
        make_step(0, first),
        make_step(1, second),
        make_step(2, replace(first, start=4), finished=(FinishedSequence(SequenceName("b", 0), "stop"),)),
        make_step(3, replace(first, start=5)),
    ]
    rows = {row.name.request_id: row for row in build_grid(steps).rows}
    assert [rows["a"].cells[idx].kind for idx in range(4)] == ["decode", "paused", "decode", "decode"]
    assert rows["b"].cells.keys() == {1, 2}
    assert rows["b"].cells[2].kind == "paused"
    assert titled(parse(Trace(TraceMetadata(), steps)), "a/0, step 1 held blocks while nothing of it was computed")


def test_bars_give_exact_figures(trace: Trace) -> None:
    root = parse(trace)
    assert has_one_cell(
        root, "step 0: 32 tokens a step 32 in prompt chunks, 0 in decodes, 0 recomputed, 0 rows of padding"
    )
    assert has_one_cell(
        root, "step 3: 1 tokens a step 0 in prompt chunks, 1 in decodes, 0 recomputed, 3 rows of padding"
    )
    assert len(titled(root, "10 of 64 blocks held by running sequences 4 private, 6 of the tree in use")) == 6
    assert len(titled(root, "1250.000 ms a step intake 250.000, schedule 250.000")) == 6
    assert "tokens per step (budget 32)" in texts(root)


def test_a_bar_as_high_as_the_budget_fills_its_strip(trace: Trace) -> None:
    full = the_cell(parse(trace), "step 0: 32 tokens")
    ground, prompt = [child for child in full if child.tag == f"{SVG}rect"]
    assert prompt.get("class") == "prompt"
    assert box(prompt)[1] == box(ground)[1]
    assert box(prompt)[3] == box(ground)[3]


@pytest.mark.parametrize(
    "name", ['<script>alert("x")</script>', "&amp;]]>", "a\x00\x1b\ud800b", "'\"><", "", "名" * 50]
)
def test_hostile_names_are_text(trace: Trace, name: str) -> None:
    steps = [
        replace(step, parts=tuple(replace(part, request_id=name) for part in step.parts), preempted=(), finished=())
        for step in trace
    ]
    hostile = Trace(replace(trace.metadata, model=name), steps)
    root = parse(hostile)
    shown = re.sub("[\x00\x1b\ud800]", "\ufffd", name)
    assert titled(root, f"{shown}/0, step 0")
    assert not list(root.iter(f"{SVG}script"))
    timeline_svg(hostile.metadata, hostile.steps).encode("utf-8")
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(timeline_html(hostile.metadata, hostile.steps))
    assert "script" not in tags
    assert tags.count("h1") == 1


def test_the_page_is_self_contained_and_has_the_summary(trace: Trace) -> None:
    page = timeline_html(trace.metadata, trace.steps)
    urls = [url for url in re.findall(r"https?://[^\"']*|(?:src|href)=[^ >]*", page) if url]
    assert urls == ["http://www.w3.org/2000/svg"]  # the namespace, which nobody loads
    assert "<td>48 (hit rate 48.0%)</td>" in page
    assert "prefers-color-scheme" in page
    assert "<?xml" not in page


def test_a_long_trace_of_many_sequences_is_cut_and_says_so(make_step: MakeStep) -> None:
    num_steps, num_sequences = 2 * MAX_COLUMNS + 1, MAX_ROWS + 7
    steps = [
        make_step(idx, *[TracedPart(f"r{idx % num_sequences}", 0, idx, 1, is_sampled=True)]) for idx in range(num_steps)
    ]
    steps[5] = replace(steps[5], num_waiting=3)
    grid = build_grid(steps)
    assert len(grid.columns) <= MAX_COLUMNS
    assert sum(map(len, grid.columns)) == num_steps
    assert grid.steps_per_column == 3
    assert len(grid.rows) == MAX_ROWS
    assert [row.name.request_id for row in grid.rows[:2]] == ["r0", "r1"]
    text = " ".join(texts(parse(Trace(TraceMetadata(), steps))))
    assert "Each column stands for 3 steps" in text
    assert f"Of {num_sequences} sequences the first {MAX_ROWS} are drawn" in text
    assert "queue the first 256 are drawn" in text


def test_the_size_of_the_picture_is_bounded(make_step: MakeStep) -> None:
    def size(num_steps: int) -> int:
        parts = [TracedPart(f"r{idx}", 0, 0, 1, is_sampled=True) for idx in range(20)]
        steps = [make_step(idx, *parts) for idx in range(num_steps)]
        return len(timeline_svg(TraceMetadata(), steps))

    assert size(4 * MAX_COLUMNS) < 1.2 * size(MAX_COLUMNS)


def test_in_thin_columns_neighbours_of_a_kind_are_one_cell(make_step: MakeStep) -> None:
    steps = [make_step(0, TracedPart("a", 0, 0, 9, num_cached_tokens=0, is_prompt=True))]
    steps += [make_step(idx, TracedPart("a", 0, 8 + idx, 1, is_sampled=True)) for idx in range(1, 300)]
    steps[100] = replace(steps[100], parts=())
    root = parse(Trace(TraceMetadata(), steps))
    assert has_one_cell(root, "a/0, steps 1 to 99 99 generated tokens computed (positions 9 to 107)")
    assert has_one_cell(root, "a/0, steps 101 to 299 199 generated tokens")


def test_cells_with_a_gap_between_them_stay_apart(make_step: MakeStep) -> None:
    name = SequenceName("again", 0)  # an id may be used again when its request has ended
    steps = [make_step(idx, waiting=(WaitingSequence(name),) if idx in (0, 1, 4) else ()) for idx in range(5)]
    root = parse(Trace(TraceMetadata(), steps))
    assert has_one_cell(root, "again/0, steps 0 to 1 waited in the queue: 2 steps")
    assert has_one_cell(root, "again/0, step 4 waited in the queue: 1 step")


def test_figures_and_labels_that_have_no_room_are_left_out_or_shortened(make_step: MakeStep) -> None:
    steps = [make_step(0, TracedPart("a-very-long-generated-name-17", 0, 0, 123, num_cached_tokens=0, is_prompt=True))]
    assert {"a-very-l…d-name-17", "123"} <= set(texts(parse(Trace(TraceMetadata(), steps))))
    steps += [make_step(idx) for idx in range(1, 200)]
    shown = texts(parse(Trace(TraceMetadata(), steps)))
    assert "123" not in shown[shown.index("step") :]


def test_a_request_with_several_samples_shows_which(make_step: MakeStep) -> None:
    step = make_step(0, TracedPart("a", 0, 0, 1), TracedPart("b", 0, 0, 1), TracedPart("b", 1, 0, 1))
    assert [text for text in texts(parse(Trace(TraceMetadata(), [step]))) if text[:1] in "ab"][:3] == [
        "a",
        "b/0",
        "b/1",
    ]


def test_an_empty_trace_says_so() -> None:
    root = parse(Trace(TraceMetadata()))
    assert "The trace has no steps." in texts(root)
    assert "Trace: 0 steps, 0 sequences" in texts(root)


def lines(root: ElementTree.Element) -> list[tuple[str, int, tuple[float, float]]]:
    """What each line says, how many ticks it has, and where its dot is."""
    return [
        (
            group.findtext(f"{SVG}title") or "",
            next(child for child in group if child.get("class") == "source-line").get("d", "").count("M") - 1,
            next((box(child)[0], box(child)[1]) for child in group if child.get("class") == "source"),
        )
        for group in root.iter(f"{SVG}g")
        if any(child.get("class") == "source" for child in group)
    ]


def test_a_line_leads_from_those_who_wait_for_a_prefix_to_who_computes_it(make_step: MakeStep) -> None:
    a, b, c, d = (SequenceName(name, 0) for name in "abcd")

    def wait(source: SequenceName, *names: SequenceName) -> tuple[WaitingSequence, ...]:
        return tuple(WaitingSequence(name, "prefix", source) for name in names)

    computes_a = TracedPart("a", 0, 0, 9, num_cached_tokens=0, is_prompt=True)
    computes_b = TracedPart("b", 0, 0, 9, num_cached_tokens=0, is_prompt=True)
    steps = [
        make_step(0, computes_a, waiting=(*wait(a, b, c), WaitingSequence(d, "behind", c))),
        make_step(1, replace(computes_a, start=9), waiting=wait(a, b, c, d)),
        make_step(2, computes_b, waiting=(*wait(b, c), *wait(SequenceName("gone", 0), d))),
    ]
    root = parse(Trace(TraceMetadata(), steps))
    assert [(title, num_ticks) for title, num_ticks, _ in lines(root)] == [
        ("a/0 was computing the prefix of b/0, c/0", 2),  # once, although it goes on in the next step
        ("a/0 was computing the prefix of d/0", 1),
        ("b/0 was computing the prefix of c/0", 1),
    ]
    dots = [place for _, _, place in lines(root)]
    assert dots[0][1] == dots[1][1] < dots[2][1]
    assert dots[0][0] < dots[1][0] < dots[2][0]
    assert has_one_cell(root, "d/0, step 0 waited in the queue: 1 step behind c/0, which did not fit")
    merged = "c/0, steps 0 to 1 waited in the queue: 2 steps for its prefix, which a/0 was computing"
    assert the_cell(root, merged).get("class") == "prefix"
    assert has_one_cell(root, "c/0, step 2 waited in the queue: 1 step for its prefix, which b/0 was computing")


def test_reasons_in_one_column_are_counted_apart(make_step: MakeStep) -> None:
    name = SequenceName("a", 0)
    reasons = ["room", "room", "seats", None]
    steps = [make_step(idx, waiting=(WaitingSequence(name, reason),)) for idx, reason in enumerate(reasons)]
    (cell,) = titled(parse(Trace(TraceMetadata(), steps)), "a/0, steps 0 to 3 waited in the queue: 4 steps")
    assert (cell.findtext(f"{SVG}title") or "").splitlines()[2:] == [
        "for blocks: the cache had no room: 2 steps",
        "for a place: as many ran as may: 1 step",
    ]
