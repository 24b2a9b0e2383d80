"""Traces as one page of HTML that needs nothing else: no network, no other file, and for reading it no script.

Selecting works by links to the panels' ids. The script only keeps the page from scrolling then, marks what is selected
everywhere, and lets j and k walk through the calls.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from . import wording
from .cache_tree import CacheTree
from .markup import html_text
from .page_assets import page_asset
from .page_cache import cache_section
from .page_call import PromptBudget, call_detail, run_detail
from .page_timeline import timeline
from .page_tree import run_tree
from .program_trace import ProgramTrace
from .report import report_of_traces

_MAX_RUNS = 500
_MAX_PROMPT_CHARS = 4_000_000


@dataclass(frozen=True, slots=True)
class PagePart:
    """Another document on the page, in a frame of its own. `height` is in pixels."""

    title: str
    document: str
    height: int


def trace_page(traces: Sequence[ProgramTrace], cache: CacheTree | None = None, parts: Sequence[PagePart] = ()) -> str:
    """The page. O(text of all prompts), which are cut once they come to 4 million characters; of more than 500 runs the
    first are shown, and those that failed before the others."""
    shown = _shown(traces)
    script = page_asset("page.js")
    title = _title(traces)
    budget = PromptBudget(_MAX_PROMPT_CHARS)
    trees = "".join(run_tree(idx, trace, len(shown)) for idx, trace in enumerate(shown))
    details = "".join(
        run_detail(idx, trace) + "".join(call_detail(idx, trace, call, budget) for call in trace.calls)
        for idx, trace in enumerate(shown)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<title>{html_text(title)}</title>
<style>{page_asset("page.css")}</style>
</head>
<body>
<header><h1>{html_text(title)}</h1>{_cards(traces)}{_reports(traces)}</header>
{timeline(shown)}
<section id="runs"><h2>{"Calls" if len(shown) == 1 else "Runs"}</h2>{_run_notes(traces, shown)}
<div class="columns"><div class="tree">{trees or '<p class="muted">No program was run.</p>'}</div>
<aside class="panel"><p class="placeholder">Select a call to see its prompt, its output and its times.</p>{details}
<a class="close" href="#none">close</a></aside></div></section>
{cache_section(cache)}
{"".join(map(_part, parts))}
<footer>Green tokens came from the prefix cache, blue ones were computed, amber ones generated.</footer>
<script>{script}</script>
</body>
</html>
"""


def _policy(script: str) -> str:
    """What a browser may do with the page: nothing from outside, and no script but this one."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _shown(traces: Sequence[ProgramTrace]) -> Sequence[ProgramTrace]:
    if len(traces) <= _MAX_RUNS:
        return traces
    first = sorted(range(len(traces)), key=lambda idx: (traces[idx].status not in ("failed", "raised"), idx))
    return [traces[idx] for idx in sorted(first[:_MAX_RUNS])]


def _title(traces: Sequence[ProgramTrace]) -> str:
    names = list(dict.fromkeys(trace.name for trace in traces))
    if not names:
        return "ramet"
    title = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return title if len(traces) == 1 else f"{title}: {wording.counted(len(traces), 'run')}"


def _cards(traces: Sequence[ProgramTrace]) -> str:
    num_prompt = sum(trace.num_prompt_tokens for trace in traces)
    num_cached = sum(trace.num_cached_tokens for trace in traces)
    num_failed = sum(trace.status in ("failed", "raised") for trace in traces)
    started = min((trace.start_time for trace in traces), default=0.0)
    ended = max((trace.start_time + trace.duration_s for trace in traces), default=0.0)
    model = next((str(trace.model["model"]) for trace in traces if "model" in trace.model), "")
    cards = [
        (f"{sum(len(trace.model_calls) for trace in traces):,}", "calls of the model", ""),
        (f"{num_prompt:,}", "prompt tokens", ""),
        (wording.percent(wording.cached_share(num_cached, num_prompt)), "from the cache", "cached-ink"),
        (f"{num_prompt - num_cached:,}", "computed", "computed-ink"),
        (f"{sum(trace.num_generated_tokens for trace in traces):,}", "generated", "generated-ink"),
        (wording.seconds(ended - started), "from first to last", ""),
    ]
    if num_failed:
        cards.append((f"{num_failed:,}", "failed runs" if num_failed > 1 else "failed run", "bad"))
    if model:
        cards.append((model, "model", ""))
    shown = "".join(
        f'<div><b class="{css}">{html_text(value)}</b><span>{name}</span></div>' for value, name, css in cards
    )
    return f'<div class="cards">{shown}</div>'


def _reports(traces: Sequence[ProgramTrace]) -> str:
    lines = [str(report) for report in report_of_traces(traces) if report.num_runs > 1]
    return f'<ul class="reports">{"".join(f"<li>{html_text(line)}</li>" for line in lines)}</ul>' if lines else ""


def _run_notes(traces: Sequence[ProgramTrace], shown: Sequence[ProgramTrace]) -> str:
    note = ""
    if len(shown) < len(traces):
        note = f'<p class="muted">{len(shown):,} of {len(traces):,} runs are shown; a .jsonl file has all of them.</p>'
    num_failed = sum(trace.status in ("failed", "raised") for trace in shown)
    if num_failed and len(shown) > 1:
        box = '<input type="checkbox" id="only-failed">'
        note += f'<label class="filter">{box} only the {num_failed:,} that failed</label>'
    return note


def _part(part: PagePart) -> str:
    return (
        f'<section><h2>{html_text(part.title)}</h2><iframe title="{html_text(part.title)}" loading="lazy" '
        f'style="height:{part.height}px" srcdoc="{html_text(part.document)}"></iframe></section>'
    )
