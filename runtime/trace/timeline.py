"""The picture of a trace: who ran, who waited and for what, step by step, with the tokens, blocks and times beside it.

    title and legend
    bars: tokens per step                |  .  || .
    A     [512][512][88]  #  #  #  #  #  #|             one row a sequence, one column a step
    B      ....  ....  [40]  #  #  #|
    bars: blocks in use                  .:||||
    bars: time per step                  ||||||

The form is that of the figures that explain iteration-level scheduling (Orca, Yu et al. 2022, section 3), with a row
for each sequence instead of each slot, so that a queue is to be seen too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from .grid import Cell, Grid, Row, build_grid
from .prefix_lines import draw_prefix_lines
from .record import SequenceName, StepRecord, TraceMetadata
from .strips import block_strip, draw_strip, time_strip, token_strip
from .summary import summarize
from .svg import Svg, xml_text
from .timeline_style import DEFINITIONS, LEGEND, PAGE_STYLE, STYLE
from .titles import cells_title

LEFT, RIGHT, MAX_LABEL_LEN, MAX_CALLED_LEN = 128, 20, 18, 10
MIN_WIDTH = 760
STRIP_HEIGHT, STRIP_GAP = 56, 34
LINE_HEIGHT = 18
CHARACTER_WIDTH = 6.2


@dataclass(frozen=True, slots=True)
class _Layout:
    """Sizes in pixels: few steps get cells with room for figures, many get thin ones."""

    column_width: float
    row_height: float

    @classmethod
    def of(cls, grid: Grid) -> _Layout:
        num_columns, num_rows = max(1, len(grid.columns)), len(grid.rows)
        column_width = min(40.0, max(2.0, round(1240 / num_columns, 1)))
        row_height = 30 if num_rows <= 20 else 18 if num_rows <= 64 else 11
        return cls(column_width, row_height)

    @property
    def has_figures(self) -> bool:
        return self.column_width >= 18 and self.row_height >= 18

    @property
    def is_merged(self) -> bool:
        """Neighbouring cells of a kind become one: too thin to be told apart."""
        return self.column_width < 8

    def x(self, column_idx: float) -> float:
        return LEFT + column_idx * self.column_width


def timeline_svg(metadata: TraceMetadata, steps: Sequence[StepRecord]) -> str:
    """A standalone SVG document. O(parts of the trace); the grid's limits bound its size."""
    grid = build_grid(steps, metadata.labels)
    layout = _Layout.of(grid)
    width = max(MIN_WIDTH, layout.x(len(grid.columns)) + RIGHT)
    svg = Svg()
    title = _title(metadata, steps)
    y = 26.0
    svg.text(16, y, title, "title ink")
    for note in grid.notes or ["Rest the pointer on anything for exact figures."]:
        y += LINE_HEIGHT
        svg.text(16, y, note, "small muted")
    y = _draw_legend(svg, LEGEND, 16, y + LINE_HEIGHT + 4, width)
    if steps:
        y = _draw_strips_and_rows(svg, metadata, grid, layout, y, width)
    else:
        y += LINE_HEIGHT
        svg.text(16, y, "The trace has no steps.", "label ink")
    return svg.document(width, y + 16, STYLE, DEFINITIONS, title)


def _draw_strips_and_rows(
    svg: Svg, metadata: TraceMetadata, grid: Grid, layout: _Layout, y: float, width: float
) -> float:
    """All that has columns, from y down. Returns where it ends."""
    y += STRIP_GAP
    draw_strip(svg, token_strip(metadata, grid.columns), LEFT, y, layout.column_width, STRIP_HEIGHT)
    y += STRIP_HEIGHT + 26
    _draw_axis(svg, grid, layout, y)
    first_row_y = y
    for row in grid.rows:
        _draw_row(svg, row, grid, layout, y)
        y += layout.row_height
    draw_prefix_lines(svg, grid, layout.x, lambda row_idx: first_row_y + row_idx * layout.row_height)
    for strip in (block_strip(grid.columns), time_strip(grid.columns)):
        y += STRIP_GAP
        draw_strip(svg, strip, LEFT, y, layout.column_width, STRIP_HEIGHT)
        y = _draw_legend(svg, strip.layers, LEFT, y + STRIP_HEIGHT + LINE_HEIGHT, width)
    return y


def timeline_html(metadata: TraceMetadata, steps: Sequence[StepRecord]) -> str:
    """A page with the summary as a table and the picture; it loads nothing."""
    title = xml_text(_title(metadata, steps))
    rows = "\n".join(
        f"<tr><th scope='row'>{xml_text(name)}</th><td>{xml_text(value)}</td></tr>"
        for name, value in summarize(metadata, steps).rows()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title><style>{PAGE_STYLE}</style></head>
<body>
<h1>{title}</h1>
<table>
{rows}
</table>
<div class="picture">
{timeline_svg(metadata, steps)}</div>
</body>
</html>
"""


def _title(metadata: TraceMetadata, steps: Sequence[StepRecord]) -> str:
    num_sequences = len({part.name for step in steps for part in step.parts})
    return f"{metadata.model or 'Trace'}: {len(steps):,} steps, {num_sequences:,} sequences"


def _draw_legend(svg: Svg, entries: Sequence[tuple[str, str]], left: float, y: float, width: float) -> float:
    """Samples of (class, meaning), as many a line as there is room for. Returns the last baseline."""
    x = left
    for css_class, meaning in entries:
        entry_width = 34 + CHARACTER_WIDTH * len(meaning)
        if x > left and x + entry_width > width - RIGHT:
            x, y = left, y + LINE_HEIGHT
        _draw_sample(svg, css_class, x, y - 10)
        svg.text(x + 20, y, meaning, "small ink")
        x += entry_width
    return y


def _draw_sample(svg: Svg, css_class: str, x: float, y: float) -> None:
    if css_class == "preempted":
        svg.path(_cross(x + 3, y + 2, 8), css_class)
    elif css_class == "paused":
        svg.path(f"M{x} {y + 6}h14", css_class)
    elif css_class == "source":
        svg.rect(x + 4, y + 3, 6, 6, css_class, radius=3)
    elif css_class in ("finish", "failed"):
        svg.rect(x + 5, y, 3, 12, css_class)
    else:
        svg.rect(x, y, 14, 12, css_class, radius=2)


def _draw_axis(svg: Svg, grid: Grid, layout: _Layout, y: float) -> None:
    """Step numbers above the rows, and a line down from each of them."""
    bottom = y + len(grid.rows) * layout.row_height
    interval = next(count for count in _round_numbers() if count * layout.column_width >= 30)
    for column_idx, column in enumerate(grid.columns):
        x = layout.x(column_idx)
        if column_idx % interval == 0:
            svg.path(f"M{x:g} {y - 3:g}V{bottom:g}", "grid")
            svg.text(x + 2, y - 6, f"{column[0].step_idx:,}", "small muted")
    svg.text(LEFT - 6, y - 6, "step", "small muted", anchor="end")


def _round_numbers() -> Iterator[int]:
    scale = 1
    while True:
        yield from (scale, 2 * scale, 5 * scale)
        scale *= 10


def _draw_row(svg: Svg, row: Row, grid: Grid, layout: _Layout, y: float) -> None:
    baseline = y + layout.row_height / 2 + 3.5
    css_class = "label ink" if layout.row_height > 11 else "tiny ink"
    svg.text(LEFT - 8, baseline, _label(row, grid), css_class, anchor="end", title=str(row))
    for first_idx, cells in _runs(row, layout):
        _draw_cells(svg, row, grid, layout, first_idx, cells, y)
    for column_idx, cell in row.cells.items():
        _draw_marks(svg, cell, layout, layout.x(column_idx), y)


def _label(row: Row, grid: Grid) -> str:
    """What the sequence is called, and its name."""
    name = str(row.name) if row.name.request_id in grid.forked_request_ids else row.name.request_id
    if row.label is None:
        return _shortened(name, MAX_LABEL_LEN)
    called = _shortened(row.label, max(MAX_CALLED_LEN, MAX_LABEL_LEN - 1 - len(name)))
    return f"{called} {_shortened(name, MAX_LABEL_LEN - 1 - len(called))}"


def _shortened(text: str, max_len: int) -> str:
    """Without its middle if it is too long: generated ids often differ in their ends only."""
    end_len = max_len // 2
    return text if len(text) <= max_len else f"{text[: max_len - end_len - 1]}…{text[len(text) - end_len :]}"


def _runs(row: Row, layout: _Layout) -> Iterator[tuple[int, list[Cell]]]:
    """Cells that are drawn as one, with their first column: neighbours that wait or pause, or any if they are thin."""

    def run_key(item: tuple[int, tuple[int, Cell]]) -> tuple[str, list[SequenceName], int]:
        position, (column_idx, cell) = item
        is_mergeable = layout.is_merged or cell.kind in ("wait", "prefix", "paused")
        # Neighbours have the same distance between column and place in the row; others never share a key.
        return cell.kind, cell.sources, column_idx - position if is_mergeable else -1 - column_idx

    for _, items in groupby(enumerate(sorted(row.cells.items())), run_key):
        run = [column_and_cell for _, column_and_cell in items]
        yield run[0][0], [cell for _, cell in run]


def _draw_cells(svg: Svg, row: Row, grid: Grid, layout: _Layout, first_idx: int, cells: list[Cell], y: float) -> None:
    kind = cells[0].kind
    x, width = layout.x(first_idx), len(cells) * layout.column_width
    steps = [step for column in grid.columns[first_idx : first_idx + len(cells)] for step in column]
    title = cells_title(row, cells, steps)
    gap = 0 if layout.is_merged else 1
    height = layout.row_height - (4 if layout.row_height > 11 else 1)
    top = y + (layout.row_height - height) / 2
    if kind == "none":
        return
    if kind == "paused":
        with svg.group(title):
            svg.rect(x, top, width, height, "hover")
            svg.path(f"M{x + gap:g} {top + height / 2:g}h{width - 2 * gap:g}", "paused")
        return
    css_class = f"{kind}-thin" if layout.is_merged and kind in ("prefix", "wasted") else kind  # no room for hatches
    svg.rect(x + gap, top, width - 2 * gap, height, css_class, title, radius=0 if layout.is_merged else 3)
    num_tokens = cells[0].num_tokens
    if layout.has_figures and len(cells) == 1 and (kind == "prompt" or num_tokens > 1):
        has_cached = bool(cells[0].num_cached_tokens)
        baseline = top + (height * 0.42 if has_cached else height / 2) + 3.5
        figure = _short_figure(num_tokens)
        if CHARACTER_WIDTH * len(figure) < width:
            svg.text(x + width / 2, baseline, figure, f"small {kind}-ink", anchor="middle")


def _draw_marks(svg: Svg, cell: Cell, layout: _Layout, x: float, y: float) -> None:
    """What is drawn over a cell: the cached prefix, a preemption, an end. They take no pointer events from it."""
    width, height = layout.column_width, layout.row_height
    if cell.num_cached_tokens:
        band = max(3.0, height * 0.3)
        top, inset = y + height - band - (2 if height > 11 else 0.5), 0 if layout.is_merged else 1
        svg.rect(x + inset, top, max(3.0, width - 2 * inset), band, "cached mark")
        figure = _short_figure(cell.num_cached_tokens)
        if layout.has_figures and height >= 30 and 5 * len(figure) < width:
            svg.text(x + width / 2, top + band - 1.5, figure, "tiny prompt-ink mark", anchor="middle")
    if cell.is_preempted:
        size = min(10.0, height - 4)
        svg.path(_cross(x + max(0.0, (width - size) / 2), y + (height - size) / 2, size), "preempted mark")
    if cell.finish_reason is not None:
        css_class = "failed" if cell.finish_reason in ("abort", "error") else "finish"
        bar = min(3.5, max(1.5, width / 3))
        svg.rect(x + width - bar, y + 1, bar, height - 2, f"{css_class} mark")


def _cross(x: float, y: float, size: float) -> str:
    return f"M{x:g} {y:g}l{size:g} {size:g}M{x:g} {y + size:g}l{size:g} {-size:g}"


def _short_figure(value: int) -> str:
    return str(value) if value < 10_000 else f"{value / 1000:.0f}k"
