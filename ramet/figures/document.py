"""The document of all figures: one Markdown file, with one SVG file a plot in a folder of its name beside it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from .figure import Figure, FigureResult
from .plotting import save_plots
from .report import as_markdown, machine

INTRODUCTION = """\
# Figures

What the systems that ramet builds on claim, computed anew by ramet. Written by `ramet figures --write docs/figures.md`;
`ramet figures NAME` computes one of them, `ramet figures --list` lists them.

Every number comes from ramet's own engine, scheduler and prefix cache: over the bundled model ("real model"), over a
runner that computes nothing and charges each step what a cost model says ("scheduler over a cost model"), or from the
cache alone ("cache only"). Absolute numbers of the papers need their models and their hardware; what is compared is
the ratio, and each note says what keeps it from being the paper's.
"""


def write_document(results: Sequence[tuple[Figure, FigureResult]], path: Path) -> None:
    """Write the document to `path` and the plots to `path` without its suffix, both replaced.

    Raises:
        FigureError: there is no matplotlib.
        OSError: something cannot be written.
    """
    plot_dir = path.with_suffix("")
    plot_dir.mkdir(parents=True, exist_ok=True)
    sections = [INTRODUCTION, f"Machine: {machine()}.\n"]
    for system, group in itertools.groupby(results, key=lambda pair: pair[0].system):
        sections.append(f"## {system}\n")
        for figure, result in group:
            plot_path = None
            if save_plots([(figure, result)], plot_dir / f"{figure.name}.svg"):
                plot_path = f"{plot_dir.name}/{figure.name}.svg"
            sections.append(as_markdown(figure, result, plot_path))
    path.write_text("\n".join(sections), encoding="utf-8")
