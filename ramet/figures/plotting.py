"""Plots to files. matplotlib is asked for here only, and only when a plot is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from .errors import FigureError
from .figure import Figure, FigureResult

WIDTH_INCHES, HEIGHT_INCHES = 6.4, 4.0
PLOT_SUFFIXES = (".png", ".svg")


def check_can_plot(path: Path) -> None:
    """Raise FigureError if plots cannot be written to `path`: no matplotlib, or an unknown kind of file."""
    if path.suffix not in PLOT_SUFFIXES:
        raise FigureError(f"a plot is written as {' or '.join(PLOT_SUFFIXES)}, and {path} names neither")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise FigureError(
            "plots need matplotlib: in ramet's checkout, pip install '.[figures]', or leave the plots out"
        ) from error


def save_plots(results: Sequence[tuple[Figure, FigureResult]], path: Path) -> int:
    """Draw the results that have a plot in a grid of two columns, or alone, and write them to `path`.

    Returns:
        How many were drawn; nothing is written if it is 0.

    Raises:
        FigureError: as `check_can_plot`.
        OSError: the file cannot be written.
    """
    check_can_plot(path)
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    plots = [(figure, result.plot) for figure, result in results if result.plot is not None]
    if not plots:
        return 0
    num_columns = min(2, len(plots))
    num_rows = math.ceil(len(plots) / num_columns)
    canvas = Canvas(figsize=(WIDTH_INCHES * num_columns, HEIGHT_INCHES * num_rows), layout="constrained")
    for idx, (figure, plot) in enumerate(plots, start=1):
        axes = canvas.add_subplot(num_rows, num_columns, idx)
        axes.set_title(f"{figure.title} ({figure.system})", fontsize="medium")
        plot(axes)
    # The same result is the same file: no date, and ids that are not random.
    with matplotlib.rc_context({"svg.hashsalt": "ramet", "svg.fonttype": "none"}):
        canvas.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    return len(plots)
