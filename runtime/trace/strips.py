"""The bars above and below a timeline: tokens per step, blocks in use, time per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ..metrics import PHASES
from .record import StepRecord, TraceMetadata
from .svg import Svg

MIN_SHARE_OF_LIMIT = 0.15
"""Where the bars would stay below that share of the limit, they are scaled to their own peak instead."""
MAX_OVER_MEDIAN = 5.0
"""Step times beyond that many medians are cut off, or one slow first step would flatten all others."""


@dataclass(frozen=True, slots=True)
class Strip:
    """A row of stacked bars, one a column.

    Attributes:
        layers: (class, name) of each part of a bar, from the bottom up.
        values: per column, one value a layer.
        top: the value at the strip's upper edge; higher bars are cut off there.
        caption: what the bars are, their unit included.
        titles: per column, the exact figures.
        line: (class, values) of a line over the bars, or None.
        limit: drawn as a level line if it lies within the strip.
    """

    layers: tuple[tuple[str, str], ...]
    values: list[list[float]]
    top: float
    caption: str
    titles: list[str]
    line: tuple[str, list[float]] | None = None
    limit: float | None = None


def token_strip(metadata: TraceMetadata, columns: Sequence[Sequence[StepRecord]]) -> Strip:
    """Tokens per step, against the budget."""
    prompt = _means(columns, lambda step: _num_tokens(step, is_prompt=True))
    decode = _means(columns, lambda step: _num_tokens(step, is_prompt=False))
    recompute = _means(columns, lambda step: step.num_recomputed_tokens)
    padding = _means(columns, lambda step: step.num_padding_rows)
    values = [list(column) for column in zip(decode, prompt, recompute, padding, strict=True)]
    budget = metadata.token_budget
    titles = [
        f"{steps_text(column)}: {_figure(sum(bar[:3]))} tokens a step\n{_figure(bar[1])} in prompt chunks, "
        f"{_figure(bar[0])} in decodes, {_figure(bar[2])} recomputed, {_figure(bar[3])} rows of padding\n"
        f"{_figure(_mean(column, lambda step: len(step.parts)))} sequences computed, "
        f"{_figure(_mean(column, lambda step: step.num_running))} running, "
        f"{_figure(_mean(column, lambda step: step.num_waiting))} waiting"
        for column, bar in zip(columns, values, strict=True)
    ]
    layers = (("decode", "decode"), ("prompt", "prompt"), ("recompute", "recompute"), ("padding", "padding"))
    caption = "tokens per step" + (f" (budget {budget:,})" if budget else "")
    return Strip(layers, values, _top(values, budget), caption, titles, limit=budget)


def block_strip(columns: Sequence[Sequence[StepRecord]]) -> Strip:
    """Blocks by who holds them, and how many the running sequences would hold if they shared nothing."""
    values = [
        [
            _mean(column, lambda step: step.memory.num_private_blocks),
            _mean(column, lambda step: step.memory.num_locked_blocks),
            _mean(column, lambda step: step.memory.num_tree_blocks - step.memory.num_locked_blocks),
        ]
        for column in columns
    ]
    unshared = _means(columns, lambda step: step.memory.num_table_blocks)
    num_blocks = max((step.memory.num_blocks for column in columns for step in column), default=0)
    titles = [
        f"{steps_text(column)}: {_figure(bar[0] + bar[1])} of {num_blocks:,} blocks held by running sequences\n"
        f"{_figure(bar[0])} private, {_figure(bar[1])} of the tree in use, {_figure(bar[2])} of the tree evictable\n"
        f"{_figure(tables)} without sharing; "
        f"{_figure(_mean(column, lambda step: step.memory.num_held_tokens))} tokens held"
        for column, bar, tables in zip(columns, values, unshared, strict=True)
    ]
    layers = (("private", "private"), ("locked", "tree, in use"), ("evictable", "tree, evictable"))
    top = _top([*values, *([value] for value in unshared)], num_blocks)
    caption = f"blocks (pool of {num_blocks:,}); dashed: without sharing"
    return Strip(layers, values, top, caption, titles, line=("unshared", unshared), limit=num_blocks)


def time_strip(columns: Sequence[Sequence[StepRecord]]) -> Strip:
    """Milliseconds per step, by phase."""
    recorded = [phase for column in columns for step in column for phase in step.phase_seconds]
    phases = list(dict.fromkeys((*PHASES, *recorded)))
    values = [[_mean_ms(column, phase) for phase in phases] for column in columns]
    titles = [
        f"{steps_text(column)}: {sum(bar):.3f} ms a step\n"
        + ", ".join(f"{phase} {value:.3f}" for phase, value in zip(phases, bar, strict=True))
        for column, bar in zip(columns, values, strict=True)
    ]
    sums = [sum(bar) for bar in values]
    top = min(max(sums, default=0.0), MAX_OVER_MEDIAN * median(sums) if sums else 0.0)
    layers = tuple((f"phase{idx % len(PHASES)}", phase) for idx, phase in enumerate(phases))
    caption = "ms per step" + (" (higher bars are cut off)" if any(value > top for value in sums) else "")
    return Strip(layers, values, top or 1.0, caption, titles)


def draw_strip(svg: Svg, strip: Strip, x: float, y: float, column_width: float, height: float) -> None:
    """Draw a strip whose upper left corner is at (x, y)."""
    width = column_width * len(strip.values)
    gap = 1 if column_width >= 6 else 0
    svg.rect(x, y, width, height, "plot")
    for column_idx, (bar, title) in enumerate(zip(strip.values, strip.titles, strict=True)):
        left = x + column_idx * column_width
        with svg.group(title):
            svg.rect(left, y, column_width, height, "hover")
            used = 0.0
            for (css_class, _), value in zip(strip.layers, bar, strict=True):
                part = min(value, strip.top - used) / strip.top * height
                if part <= 0:
                    continue
                bottom = y + height - used / strip.top * height
                svg.rect(left + gap / 2, bottom - part, column_width - gap, part, css_class)
                used += value
    if strip.line is not None:
        css_class, line = strip.line
        points = []
        for column_idx, value in enumerate(line):
            level = y + height - min(value, strip.top) / strip.top * height
            points += [(x + column_idx * column_width, level), (x + (column_idx + 1) * column_width, level)]
        svg.polyline(points, css_class)
    if strip.limit is not None and strip.limit <= strip.top:
        level = y + height - strip.limit / strip.top * height
        svg.polyline([(x, level), (x + width, level)], "limit")
    svg.text(x - 6, y + 9, _figure(strip.top), "small muted", anchor="end")
    svg.text(x - 6, y + height, "0", "small muted", anchor="end")
    svg.text(x, y - 5, strip.caption, "small ink")


def steps_text(column: Sequence[StepRecord]) -> str:
    first, last = column[0].step_idx, column[-1].step_idx
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def _num_tokens(step: StepRecord, *, is_prompt: bool) -> int:
    """Those of prompt chunks, or of decodes, that were computed for the first time."""
    return sum(part.num_new_tokens for part in step.parts if part.is_prompt is is_prompt and not part.is_recomputed)


def _mean(column: Sequence[StepRecord], value: Callable[[StepRecord], float]) -> float:
    return sum(map(value, column)) / len(column)


def _mean_ms(column: Sequence[StepRecord], phase: str) -> float:
    return 1e3 * _mean(column, lambda step: step.phase_seconds.get(phase, 0.0))


def _means(columns: Sequence[Sequence[StepRecord]], value: Callable[[StepRecord], float]) -> list[float]:
    return [_mean(column, value) for column in columns]


def _top(bars: list[list[float]], limit: float | None) -> float:
    peak = max((sum(bar) for bar in bars), default=0.0)
    if limit is not None and peak >= MIN_SHARE_OF_LIMIT * limit:
        return max(peak, limit)
    return peak or 1.0


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
