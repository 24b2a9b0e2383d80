"""The page: everything is in it, nothing of a program's text can act on it, and a browser shows it without help."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ramet import CacheNode, CacheTree, CallTrace, MockBackend, ProgramState, ProgramTrace, function, gen, save_traces
from ramet.frontend.trace import page, page_call
from ramet.frontend.trace.page import PagePart, trace_page

VOID = {"meta", "input"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Outline(HTMLParser):
    """Checks that elements are nested, and collects what a test asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        values = dict(attrs)
        assert not [name for name in values if name.startswith("on")]
        if values.get("id"):
            self.ids.append(values["id"] or "")
        for name in ("href", "src"):
            if values.get(name):
                self.links.append(values[name] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)


def outline_of(text: str) -> Outline:
    outline = Outline(text)
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    return outline


@function
def triage(s: ProgramState, ticket: str) -> None:
    s += "Sort this ticket: " + ticket
    for fork in s.fork(3):
        fork += gen("reply", max_tokens=20)


def run_triage(ticket: str = "late roses") -> ProgramTrace:
    return triage.run(ticket=ticket, backend=MockBackend("done")).trace()


def test_the_page_is_whole_and_needs_nothing_else(hostile_trace: ProgramTrace) -> None:
    outline = outline_of(trace_page([hostile_trace, run_triage()], parts=[PagePart("Steps", "<b>x</b>", 100)]))
    assert all(link.startswith("#") for link in outline.links)
    targets = {link[1:] for link in outline.links} - {"none"}
    assert targets <= set(outline.ids)
    assert {f"r1c{call.call_id}" for call in run_triage().calls} <= set(outline.ids)


def test_what_a_program_says_cannot_act(hostile_trace: ProgramTrace) -> None:
    node = CacheNode(None, 0, (1,), "</script><b>\ud800\u2028", 1, 1)
    text = trace_page([hostile_trace], CacheTree(16, 0, (node,)))
    text.encode("utf-8")
    outline = outline_of(text)
    assert outline.tags.count("script") == 1
    assert not {"\u2028", "\u202e", "\x00", "\x1b"} & set(text)
    shown = "".join(outline.texts)
    assert "</script><script>alert(1)</script>" in shown
    assert "\\ud800" in shown
    assert "\\u202e" in shown


def test_every_prompt_is_there_with_its_cached_part_apart() -> None:
    trace = run_triage()
    text = trace_page([trace])
    call = trace.model_calls[1]
    assert call.meta is not None
    assert call.meta.num_cached_tokens == len("Sort this ticket: late rose")
    cached = "".join(f"<i>{letter}</i>" for letter in "Sort this ticket: late rose")
    assert f'<span class="cached" title="from the cache">{cached}</span>' in text
    assert '<span class="computed" title="computed"><i>s</i></span>' in text


def test_prompts_beyond_the_budget_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_MAX_PROMPT_CHARS", 60)
    monkeypatch.setattr(page_call, "_END_CHARS", 5)
    text = trace_page([run_triage()])
    assert text.count('title="computed"') == 2
    assert "this is the end of 28 characters" in text
    assert '<pre class="prompt">…roses</pre>' in text


def test_many_runs_are_folded_and_those_that_failed_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [run_triage(str(idx)) for idx in range(6)]
    traces[4] = replace(traces[4], status="failed")
    text = trace_page(traces)
    assert text.count('<details class="run">') == 5
    assert text.count('<details class="run bad" open>') == 1
    assert "shared prefix 18 tokens x 6 runs" in text
    monkeypatch.setattr(page, "_MAX_RUNS", 2)
    text = trace_page(traces)
    assert "2 of 6 runs are shown" in text
    assert text.count('<details class="run bad" open>') == 1


def test_a_page_of_nothing_is_a_page() -> None:
    outline_of(trace_page([]))
    outline_of(trace_page([ProgramTrace("f", "1")], CacheTree(16, 16)))
    outline_of(trace_page([ProgramTrace("f", "1", calls=(CallTrace(call_id=0, kind="gen", submitted_s=0.0),))]))


def test_the_cache_is_coloured_by_hits() -> None:
    nodes = [CacheNode(None, 0, tuple(range(16)), "root", 100, 9, is_locked=True)]
    nodes += [CacheNode(0, 16, (7,) * 4, f"leaf {idx}", idx, idx) for idx in range(3)]
    text = trace_page([], CacheTree(64, 16, tuple(nodes)))
    assert "4 nodes hold 28 tokens; 48 of 64 slots are in use" in text
    assert 'class="heat5 locked" style="left:0.00%;width:80.00%"' in text
    assert text.count('<i class="heat0" style="left:80.00%;width:20.00%">') == 1
    assert text.count('<i class="heat1" style="left:80.00%;width:20.00%">') == 1
    assert CacheTree(64, 16, tuple(nodes)).depths() == [0, 1, 1, 1]


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_a_browser_runs_the_one_script_and_loads_nothing(tmp_path: Path, hostile_trace: ProgramTrace) -> None:
    path = tmp_path / "page.html"
    save_traces([hostile_trace], path, parts=[PagePart("Steps", "<p>framed</p>", 80)])
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1400,900",
        f"--user-data-dir={tmp_path}",
        "--dump-dom",
    ]
    try:
        result = subprocess.run([*command, path.as_uri()], capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("chromium does not start here in time")
    if result.returncode != 0 or not result.stdout:
        pytest.skip("chromium does not start here")
    dom = result.stdout.decode()
    assert '<html lang="en" class="js">' in dom  # our script ran: its digest is that of the policy
    assert "detail shown" in dom
    assert dom.count("<script>") == 1
