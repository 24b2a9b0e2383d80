"""The timeline of a page: one lane a branch, one bar a call, over the time of all runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import wording
from .markup import html_text
from .outline import outline
from .page_call import call_anchor
from .program_trace import CallTrace, ProgramTrace

_MAX_LANES = 240
_MIN_SPAN_S = 1e-4
_MAX_TICKS = 8


@dataclass(frozen=True, slots=True)
class Lane:
    """The calls of one branch of one run. `offset_s` is when the run began after the first call of all was sent."""

    run_idx: int
    label: str
    offset_s: float
    now_s: float
    calls: tuple[CallTrace, ...]
    is_first: bool


def timeline(traces: Sequence[ProgramTrace]) -> str:
    """The section; empty if no call was sent."""
    lanes = list(_lanes(traces))
    if not lanes:
        return ""
    shown = lanes[:_MAX_LANES]
    ended_s = max(lane.offset_s + _end(call, lane) for lane in shown for call in lane.calls)
    span_s = max(ended_s, _MIN_SPAN_S)
    rows = "".join(_lane_row(lane, span_s) for lane in shown)
    note = f'<p class="muted">The first {_MAX_LANES} of {len(lanes):,} branches.</p>' if len(lanes) > _MAX_LANES else ""
    dense = " dense" if len(shown) > 40 else ""
    return (
        f'<section id="timeline"><h2>Timeline</h2>{_LEGEND}{note}'
        f'<div class="lanes{dense}"><div class="axis"><span></span><div class="track">{_ticks(span_s)}</div></div>'
        f"{rows}</div></section>"
    )


_LEGEND = (
    '<p class="legend"><span><i class="wait"></i>waiting for the engine</span>'
    '<span><i class="prefill"></i>prompt computed, choices scored</span>'
    '<span><i class="decode"></i>text generated</span>'
    '<span><i class="busy"></i>running, phases unknown</span><span><i class="failed"></i>failed</span></p>'
)


def _lanes(traces: Sequence[ProgramTrace]) -> Iterator[Lane]:
    first_sent = min((at for trace in traces if (at := _first_sent(trace)) is not None), default=0.0)
    for run_idx, trace in enumerate(traces):
        title = trace.name if len(traces) == 1 else f"{run_idx + 1} {trace.name}"
        is_first = True
        for branch in outline(trace).walk():
            calls = tuple(item.call for item in branch.items if item.call.submitted_s is not None)
            if not calls:
                continue
            label = title if not branch.path else branch.label
            if branch.path and is_first:
                label = f"{title} · {branch.label}"
            yield Lane(run_idx, label, trace.start_time - first_sent, trace.duration_s, calls, is_first)
            is_first = False


def _first_sent(trace: ProgramTrace) -> float | None:
    """When its first call went to the backend, in seconds since 1970."""
    sent = [call.submitted_s for call in trace.calls if call.submitted_s is not None]
    return trace.start_time + min(sent) if sent else None


def _end(call: CallTrace, lane: Lane) -> float:
    """When it ended, or now."""
    return call.ended_s if call.ended_s is not None else lane.now_s


def _lane_row(lane: Lane, span_s: float) -> str:
    bars = "".join(_bar(lane, call, span_s) for call in lane.calls)
    css = "lane first" if lane.is_first else "lane"
    label = html_text(lane.label)
    return f'<div class="{css}"><span title="{label}">{label}</span><div class="track">{bars}</div></div>'


def _bar(lane: Lane, call: CallTrace, span_s: float) -> str:
    assert call.submitted_s is not None
    start_s, end_s = call.submitted_s, max(call.submitted_s, _end(call, lane))
    total = max(end_s - start_s, 1e-9)
    phases = [(phase, length) for phase, length in _phases(call, end_s) if length > 0]
    longest = max(phases, key=lambda phase: phase[1], default=None)
    segments = "".join(
        f'<i class="{phase}" style="width:{100 * length / total:.2f}%">'
        f"{html_text(call.name or call.kind) if (phase, length) == longest else ''}</i>"
        for phase, length in phases
    )
    left = 100 * (lane.offset_s + start_s) / span_s
    title = html_text(f"{call.describe()}: {wording.seconds(total)}, {wording.ending(call)}")
    return (
        f'<a class="bar {call.status}" href="#{call_anchor(lane.run_idx, call)}" title="{title}" '
        f'style="left:{left:.3f}%;width:{100 * total / span_s:.3f}%">{segments}</a>'
    )


def _phases(call: CallTrace, end_s: float) -> list[tuple[str, float]]:
    assert call.submitted_s is not None
    if call.started_s is None and call.first_token_s is None:
        return [("busy", end_s - call.submitted_s)]
    started_s = call.submitted_s if call.started_s is None else min(call.started_s, end_s)
    first_s = end_s if call.first_token_s is None else min(max(call.first_token_s, started_s), end_s)
    return [("wait", started_s - call.submitted_s), ("prefill", first_s - started_s), ("decode", end_s - first_s)]


def _ticks(span_s: float) -> str:
    step = _tick_step(span_s)
    ticks = []
    for idx in range(int(span_s / step) + 1):
        at = idx * step
        label = "0" if idx == 0 else f"{at * 1000:g} ms" if step < 0.1 else f"{at:g} s"
        ticks.append(f'<i style="left:{100 * at / span_s:.3f}%">{label}</i>')
    return "".join(ticks)


def _tick_step(span_s: float) -> float:
    """1, 2 or 5 times a power of ten, so that there are few enough."""
    step = 10.0**-6
    while span_s / step > _MAX_TICKS:
        for factor in (2.0, 2.5, 2.0):
            step *= factor
            if span_s / step <= _MAX_TICKS:
                break
    return float(f"{step:.3g}")
