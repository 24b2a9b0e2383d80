"""Traces as files: lines of JSON, a page, or text, by the suffix of the name."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from ...whole_file import whole_file
from .cache_tree import CacheTree
from .page import PagePart, trace_page
from .program_trace import ProgramTrace
from .trace_json import ProgramTraceFormatError, trace_from_json

SUFFIXES = (".jsonl", ".html", ".txt")


def save_traces(
    traces: ProgramTrace | Sequence[ProgramTrace],
    path: str | PathLike[str],
    *,
    cache: CacheTree | None = None,
    parts: Sequence[PagePart] = (),
) -> None:
    """Write a trace, or several, into one file, which is replaced if it exists: whole, or not at all.

    Args:
        path: `.jsonl` has one trace a line, for `ProgramTrace.load`; `.html` is a page that needs nothing else; `.txt`
            is text with every prompt.
        cache: what the prefix cache holds, to be drawn on a page.
        parts: other documents to be shown on a page.

    Raises:
        ValueError: the name ends in none of these.
        OSError: the file cannot be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"path={str(path)!r} must end in {', '.join(SUFFIXES)}: that says what to save")
    traces = [traces] if isinstance(traces, ProgramTrace) else list(traces)
    for trace in traces:
        if not isinstance(trace, ProgramTrace):
            raise ValueError(f"traces must be what state.trace() gives, {trace!r:.80} is not")
    with whole_file(path, errors="backslashreplace") as file:
        if suffix == ".jsonl":
            file.writelines(f"{trace.to_json()}\n" for trace in traces)
        elif suffix == ".html":
            file.write(trace_page(traces, cache, parts))
        else:
            file.write("\n\n".join(trace.text(has_prompts=True) for trace in traces) + "\n")


def load_traces(path: str | PathLike[str]) -> list[ProgramTrace]:
    """Read what `save_traces` wrote as `.jsonl`.

    Raises:
        ProgramTraceFormatError: a line is no trace, or is cut off; the message gives the line.
        OSError: the file cannot be read.
    """
    traces: list[ProgramTrace] = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                if not line.endswith(b"\n"):
                    raise ProgramTraceFormatError("it is cut off: its end of line is missing")
                traces.append(trace_from_json(line))
            except ProgramTraceFormatError as error:
                raise ProgramTraceFormatError(f"{path}, line {number}: {error}") from None
    return traces
