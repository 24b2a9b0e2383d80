"""What a figure found, as text for a terminal, as Markdown and as JSON."""

from __future__ import annotations

import os
import platform
import textwrap
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..runtime.config import default_num_threads
from .figure import Cell, Figure, FigureResult


def as_text(figure: Figure, result: FigureResult, width: int = 100) -> str:
    """The figure as it is printed: title, table, ours, the paper's, how, notes; lines broken at `width` columns."""
    facts = [
        ("ramet", result.headline),
        ("paper", f"{result.paper_value} ({figure.paper})"),
        ("how", how(figure, result)),
        *(("note", note) for note in result.notes),
    ]
    lines = [textwrap.fill(f"{label:<7}{text}", width, subsequent_indent=" " * 7) for label, text in facts]
    return "\n".join([f"{figure.name}: {figure.title} ({figure.system})", "", *table_lines(result), "", *lines])


def as_markdown(figure: Figure, result: FigureResult, plot_path: str | None) -> str:
    """The same as a section of a document; `plot_path` as the document's links have it."""
    lines = [
        f"### {figure.title} (`{figure.name}`)",
        "",
        f"- **ramet:** {result.headline}",
        f"- **paper:** {result.paper_value} ({figure.paper})",
        f"- **how:** {how(figure, result)}",
        "",
        "| " + " | ".join(result.columns) + " |",
        "|" + "---|" * len(result.columns),
        *("| " + " | ".join(cells) + " |" for cells in _cell_texts(result.rows)),
        "",
    ]
    if plot_path is not None:
        lines += [f"![{figure.title}]({plot_path})", ""]
    return "\n".join(lines + [note + "\n" for note in result.notes])


def as_json(figure: Figure, result: FigureResult) -> dict[str, Any]:
    """The same as an object of plain values."""
    return {
        "name": figure.name,
        "system": figure.system,
        "title": figure.title,
        "paper": figure.paper,
        "method": figure.method,
        "columns": list(result.columns),
        "rows": [list(row) for row in result.rows],
        "headline": result.headline,
        "paper_value": result.paper_value,
        "notes": list(result.notes),
        "seconds": round(result.seconds, 3),
    }


def how(figure: Figure, result: FigureResult) -> str:
    """How the number was obtained, and in what time."""
    return f"{figure.method}, {result.seconds:.1f} s"


def table_lines(result: FigureResult) -> list[str]:
    """The table in columns; all but the first are set to the right."""
    texts = [list(result.columns), *_cell_texts(result.rows)]
    widths = [max(len(row[idx]) for row in texts) for idx in range(len(result.columns))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in texts]
    return [lines[0], "-" * (sum(widths) + 2 * (len(widths) - 1)), *lines[1:]]


def machine() -> str:
    """The machine in words: a number about time means nothing without it."""
    name = platform.processor() or platform.machine()
    try:
        fields = [line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()]
        name = next((value.strip() for key, _, value in fields if key.strip() == "model name"), name)
    except OSError:  # not Linux
        pass
    return (
        f"{name}, {default_num_threads()} of {os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}, torch {version('torch')}"
    )


def _cell_texts(rows: Sequence[Sequence[Cell]]) -> list[list[str]]:
    return [[_cell_text(cell) for cell in row] for row in rows]


def _cell_text(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.3g}" if abs(cell) < 100 else f"{cell:,.0f}"
