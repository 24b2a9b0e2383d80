"""Who waited for whom: lines of a timeline from those who waited for a prefix to the sequence that computed it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from .grid import Grid
from .record import SequenceName
from .svg import Svg

MAX_NAMES = 8
PLACES = (0.2, 0.1, 0.3)
"""Where in a column the lines of its first, second and third sequence stand; then again."""


def draw_prefix_lines(svg: Svg, grid: Grid, x_of: Callable[[float], float], y_of: Callable[[float], float]) -> None:
    """One line for each column and sequence that somebody began to wait for there, with a dot on the row of that
    sequence and a tick on each of the others.

    Args:
        x_of, y_of: pixels of a place in columns and in rows.
    """
    row_idx_of = {row.name: idx for idx, row in enumerate(grid.rows)}
    for column_idx, waiters_of in sorted(_beginnings(grid).items()):
        for place, (source, waiters) in enumerate(waiters_of.items()):
            if source not in row_idx_of:
                continue
            x = x_of(column_idx + PLACES[place % len(PLACES)])
            own, others = row_idx_of[source], [row_idx_of[name] for name in waiters]
            top, bottom = y_of(min(own, *others) + 0.5), y_of(max(own, *others) + 0.5)
            ticks = "".join(f"M{x - 3:g} {y_of(idx + 0.5):g}h6" for idx in others)
            names = ", ".join(map(str, waiters[:MAX_NAMES])) + (", ..." if len(waiters) > MAX_NAMES else "")
            with svg.group(f"{source} was computing the prefix of {names}"):
                svg.path(f"M{x:g} {top:g}V{bottom:g}{ticks}", "source-line")
                svg.rect(x - 3, y_of(own + 0.5) - 3, 6, 6, "source", radius=3)


def _beginnings(grid: Grid) -> dict[int, dict[SequenceName, list[SequenceName]]]:
    """By column: the sequences that a wait begins for there, with the drawn ones that wait."""
    found: defaultdict[int, defaultdict[SequenceName, list[SequenceName]]] = defaultdict(lambda: defaultdict(list))
    for row in grid.rows:
        for column_idx, cell in row.cells.items():
            before = row.cells.get(column_idx - 1)
            for source in cell.sources:
                if before is None or source not in before.sources:
                    found[column_idx][source].append(row.name)
    return {column_idx: dict(waiters_of) for column_idx, waiters_of in found.items()}
