"""Figure: one claim of a paper, and the code that computes ramet's own number for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from .context import FigureContext

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Method = Literal["real model", "scheduler over a cost model", "cache only"]
Cell = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureResult:
    """What a figure found.

    Attributes:
        columns: headings of the table, with units.
        rows: one cell per column.
        headline: our number in one line.
        paper_value: the paper's number in one line, or what it claims where it gives none.
        notes: what the reader must know to judge the number: workload, constants, what is not comparable.
        plot: draws the result on one pair of axes; None where a table says it all.
        seconds: what it took to compute, set by `Figure.measure`.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    headline: str
    paper_value: str
    notes: tuple[str, ...] = ()
    plot: Callable[[Axes], None] | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), f"{len(row)} cells for {len(self.columns)} columns: {row}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One reproducible claim.

    Attributes:
        name: what the command line calls it.
        system: whose claim it is.
        paper: where the claim stands: title or venue, and section.
        method: how the number is obtained. Under every method the scheduler and the cache are the product's own.
        run: computes it. May take a minute at full scale, seconds at quick scale.
    """

    name: str
    system: str
    title: str
    paper: str
    method: Method
    run: Callable[[FigureContext], FigureResult]

    def measure(self, context: FigureContext) -> FigureResult:
        """Run it and note how long that took. Raises whatever the engine raises."""
        start = time.perf_counter()
        result = self.run(context)
        return replace(result, seconds=time.perf_counter() - start)
