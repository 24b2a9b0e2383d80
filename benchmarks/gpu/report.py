"""The results in Markdown: targets first, then a table a part. Interpreted runs have no timings in theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.cpu.markdown import format_number, table

from .parts import PARTS, Column
from .results import PartResult


def render(header: dict[str, Any], results: Sequence[PartResult]) -> str:
    is_tiny = header["is_tiny"]
    lines = ["# The GPU table", "", f"`{header['command']}`, {header['date']}; {header['device']}.", ""]
    if is_tiny:
        lines += ["Triton's interpreter at tiny sizes: this shows that everything runs. Timings mean nothing.", ""]
    else:
        lines += _targets(results)
    lines += _unsound_lines(results)
    by_name = {part.name: part for part in PARTS}
    for result in results:
        part = by_name[result.name]
        columns = [column for column in part.columns if not (is_tiny and column.is_timing)]
        lines += [f"## {part.title}", "", *_part_lines(result, columns, is_tiny=is_tiny), ""]
    return "\n".join(lines).rstrip() + "\n"


def unsound(results: Sequence[PartResult]) -> list[str]:
    """A sentence for each kind of part that shows less than it should."""
    kinds = {
        "Nothing was measured by": [result.name for result in results if not result.rows],
        "Something failed in": [result.name for result in results if result.failures],
        "Something is wrong in": [result.name for result in results if result.num_wrong],
    }
    return [f"{kind} {', '.join(names)}." for kind, names in kinds.items() if names]


def _unsound_lines(results: Sequence[PartResult]) -> list[str]:
    lines = [f"**{sentence}**" for sentence in unsound(results)]
    return [*lines, ""] if lines else []


def _targets(results: Sequence[PartResult]) -> list[str]:
    targets = [target for result in results for target in result.targets]
    if not targets:
        return []
    rows = [
        [
            target.name,
            f"{'at least' if target.is_at_least else 'at most'} {target.goal:g}",
            format_number(target.value),
            "yes" if target.is_met else "no",
        ]
        for target in targets
    ]
    return ["## Targets", "", *table(["what", "goal", "measured", "met"], rows), ""]


def _part_lines(result: PartResult, columns: Sequence[Column], *, is_tiny: bool) -> list[str]:
    if result.skipped is not None:
        return [result.skipped]
    lines = [f"{result.seconds:.0f} s, of them {result.compile_seconds:.0f} s for loading and first calls.", ""]
    if is_tiny:
        lines = []
    if result.num_wrong:
        lines += [f"**{result.num_wrong} of {len(result.rows)} are wrong.**", ""]
    used = [column for column in columns if any(row.get(column.key) is not None for row in result.rows)]
    if used:
        rows = [[format_cell(column, row.get(column.key)) for column in used] for row in result.rows]
        lines += [*table([column.head for column in used], rows), ""]
    if not is_tiny:
        lines += [f"- {note}" for note in result.notes]
    lines += [f"- **{failure['case']} failed:** `{failure['error'].splitlines()[0]}`" for failure in result.failures]
    return lines


def format_cell(column: Column, value: Any) -> str:
    """A value as its column shows it; nothing for None."""
    if value is None:
        return ""
    forms = {
        "text": lambda: {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value),
        "count": lambda: f"{value:,}",
        "number": lambda: format_number(value),
        "share": lambda: f"{value:.1%}",
        "times": lambda: f"{format_number(value)}x",
        "error": lambda: f"{value:.2g}",
    }
    return forms[column.form]()
