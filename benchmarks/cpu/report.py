"""The report as Markdown. It reads what `campaign.run_plan` found and computes nothing but ratios."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .catalogue import ENGINES, OURS, REFERENCE
from .limits_report import limits_section
from .markdown import format_number, table
from .metrics import METRICS, Figure, Metric, figure_of, gain
from .quality_report import quality_section
from .steps_report import host_section, steps_section

ANSWERED_ALIKE = ("W2", "W3", "W3-select")
"""Workloads whose prompts do not depend on what was generated before."""


def render(results: Mapping[str, Any]) -> str:
    """The whole report; parts that were not measured are left out."""
    sections = [_header(results)]
    if any(found["runs"] for found in results["engines"].values()):
        sections += [_main_section(results), _engines_section(results)]
    elif any(found["reason"] for found in results["engines"].values()):
        sections.append(_engines_section(results))
    if results["limits"]:
        sections.append(limits_section(results))
    if results["steps"]:
        sections += [steps_section(results), host_section(results)]
    if "quality" in results:
        sections.append(quality_section(results["quality"]))
    return "\n\n".join(sections)


def _header(results: Mapping[str, Any]) -> str:
    run, model = results["run"], results["model"]
    types = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sorted(model["weight_bytes_by_type"].items()))
    return "\n".join(
        [
            "# ramet on a CPU",
            "",
            f"`{run['command']}`, {run['date']}.",
            "",
            f"- Machine: {run['machine']}. {run['threads']} threads everywhere; Python {run['python']} for ramet.",
            f"- Model: {model['name']}, {types}.",
            f"- {run['repeat']} rounds. In each every engine runs in a process of its own, one after the other. "
            "Figures are the best round, the median in parentheses.",
            "- Greedy, end of sequence ignored, the same token ids for all. Loading and warming up are not counted.",
        ]
    )


def _main_section(results: Mapping[str, Any]) -> str:
    sizes = results["run"]["sizes"]
    names = [name for name, found in results["engines"].items() if found["runs"]]
    rows, notes = [], list[str]()
    for metric in METRICS:
        figures = {name: figure_of(metric, results["engines"][name]["runs"], sizes) for name in names}
        if all(figure is None for figure in figures.values()):
            continue
        cells = [_figure_cell(figure) for figure in figures.values()]
        notes += [
            f"- {metric.title}, {ENGINES[name].label}: {figure}."
            for name, figure in figures.items()
            if isinstance(figure, str)
        ]
        rows.append([f"{metric.title}, {metric.unit}", *cells, *_comparison(metric, figures)])
    heads = ["", *(ENGINES[name].label for name in names), "best peer", "ramet is", "target"]
    descriptions = [f"- {name}: {text}" for name, text in results["descriptions"].items() if name != "W3-together"]
    legend = [
        "- W3 unprimed: the prefix is not sent ahead to engines that need it sent to share it.",
        '- "ramet is": times as fast as the best peer, best against best; medians in parentheses.',
    ]
    return "\n".join(["## Workloads", "", *table(heads, rows), "", *descriptions, *legend, *notes])


def _figure_cell(figure: Figure | str | None) -> str:
    if isinstance(figure, Figure):
        return f"{format_number(figure.best)} ({format_number(figure.median)})"
    return "" if figure is None else "n/a"


def _comparison(metric: Metric, figures: Mapping[str, Figure | str | None]) -> list[str]:
    """The best peer, our gain over it, and whether that is what we want."""
    peers = {name: figure for name, figure in figures.items() if name != OURS and isinstance(figure, Figure)}
    own = figures.get(OURS)
    target = "" if metric.target is None else f"{metric.target:g}x"
    if not peers:
        return ["", "", target]
    best_peer = max(peers, key=lambda name: gain(metric, peers[name].best, 1.0))
    label = ENGINES[best_peer].label
    if not isinstance(own, Figure):
        return [label, "", target]
    by_best = gain(metric, own.best, peers[best_peer].best)
    by_median = gain(metric, own.median, peers[best_peer].median)
    if metric.target is not None:
        target += ", met" if by_best >= metric.target else ", missed"
    return [label, f"**{by_best:.2f}x** ({by_median:.2f}x)", target]


def _engines_section(results: Mapping[str, Any]) -> str:
    reference = results["engines"].get(REFERENCE, {"runs": []})["runs"]
    rows = []
    for name, found in results["engines"].items():
        runs = found["runs"]
        if not runs:
            rows.append([ENGINES[name].label, f"not run: {found['reason']}", "", "", ""])
            continue
        versions = ", ".join(f"{package} {version}" for package, version in runs[0]["versions"].items())
        failure = f"; then failed: {found['reason']}" if found["reason"] else ""
        rows.append(
            [
                ENGINES[name].label,
                f"{versions}; {runs[0]['details']}{failure}",
                f"{max(run['peak_rss_bytes'] for run in runs) / 1e6:.0f} MB",
                f"{statistics.median(run['load_seconds'] for run in runs):.1f} s",
                _agreement_cell(runs[0], reference[0]) if reference else "",
            ]
        )
    heads = ["engine", "versions and setting", "peak RSS", "load", "answers as in fp32"]
    note = (
        "Peak RSS is all the process ever held, loading included. The last column counts first tokens (W2, W3) and "
        "choices (W3-select) that equal those of transformers in fp32: a check that all compute the same model."
    )
    return "\n".join(["## Engines", "", *table(heads, rows), "", note])


def _agreement_cell(run: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    pairs = list(_answer_pairs(run["workloads"], reference["workloads"]))
    return f"{sum(own == other for own, other in pairs)} of {len(pairs)}" if pairs else ""


def _answer_pairs(own: Mapping[str, Any], reference: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
    for name in ANSWERED_ALIKE:
        answers: Sequence[int] = own.get(name, {}).get("answers", [])
        expected: Sequence[int] = reference.get(name, {}).get("answers", [])
        yield from zip(answers, expected, strict=False)
