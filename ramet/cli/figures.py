"""`ramet figures`: the claims of the systems that ramet builds on, computed anew by ramet itself."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CommandError
from .interrupts import exit_on_interrupt
from .terminal import Terminal

if TYPE_CHECKING:
    from ..figures.figure import Figure, FigureResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="which figures (default: all, some ten minutes)")
    parser.add_argument("--list", action="store_true", help="list the figures and compute none")
    parser.add_argument("--quick", action="store_true", help="far less work, rough numbers: to see that all runs")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw what was computed to a .png or .svg file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was computed as JSON")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a Markdown document, its plots beside it")


def execute(args: argparse.Namespace) -> int:
    with exit_on_interrupt():
        from ..figures.registry import FIGURES
    terminal = Terminal()
    if args.list:
        for figure in FIGURES.values():
            terminal.line(f"{figure.name:<28}{figure.system}: {figure.title}; {figure.method}")
        return 0
    figures = [_find(FIGURES, name) for name in args.names] or list(FIGURES.values())
    check_outputs(args)
    results = compute(figures, args, terminal)
    write_outputs(results, args, terminal)
    return 0


def check_outputs(args: argparse.Namespace) -> None:
    """Raise before minutes of work if their result could not be written."""
    from ..figures.plotting import check_can_plot

    for path in (args.plot, args.json, args.write):
        if path is not None and not path.parent.is_dir():
            raise CommandError(f"{path} cannot be written: there is no directory {path.parent}")
    if args.write is not None and args.write.suffix != ".md":
        raise CommandError(f"--write writes Markdown, and {args.write} does not end in .md")
    if args.plot is not None:
        check_can_plot(args.plot)
    if args.write is not None:
        check_can_plot(args.write.with_suffix(".svg"))


def compute(figures: list[Figure], args: argparse.Namespace, terminal: Terminal) -> list[tuple[Figure, FigureResult]]:
    """Compute the figures one by one, each printed as soon as it is there."""
    from ..figures.context import FigureContext
    from ..figures.report import as_text, machine

    terminal.line(terminal.dim(f"on {machine()}"))
    if args.quick:
        terminal.line(terminal.bad("small versions that only show that it works: the numbers mean little"))
    results = []
    with FigureContext("quick" if args.quick else "full") as context:
        for figure in figures:
            result = figure.measure(context)
            results.append((figure, result))
            heading, _, rest = as_text(figure, result, terminal.width).partition("\n")
            terminal.line(f"\n{terminal.bold(heading)}\n{rest}")
    return results


def write_outputs(results: list[tuple[Figure, FigureResult]], args: argparse.Namespace, terminal: Terminal) -> None:
    """Write the files that `args` asks for, and say so."""
    from ..figures.document import write_document
    from ..figures.plotting import save_plots
    from ..figures.report import as_json, machine

    if args.json is not None:
        document = {"machine": machine(), "figures": [as_json(figure, result) for figure, result in results]}
        args.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        terminal.line(f"\nwrote {args.json}")
    if args.plot is not None:
        num_plots = save_plots(results, args.plot)
        terminal.line(f"\nwrote {args.plot}" if num_plots else "\nnone of these figures has a plot")
    if args.write is not None:
        write_document(results, args.write)
        terminal.line(f"\nwrote {args.write}")


def _find(known: dict[str, Figure], name: str) -> Figure:
    if name not in known:
        raise CommandError(f"there is no figure {name!r}; `ramet figures --list` lists them: {', '.join(known)}")
    return known[name]
