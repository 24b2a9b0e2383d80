"""Trace: the steps of an engine as a sequence of records, with what is needed to read them later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import overload

from ...whole_file import whole_file
from .jsonl import read_jsonl, write_jsonl
from .record import StepRecord, TraceMetadata
from .summary import summarize
from .timeline import timeline_html, timeline_svg


@dataclass(eq=True)
class Trace(Sequence[StepRecord]):
    """A sequence of StepRecords. Equal to another one with equal metadata and records.

    Attributes:
        metadata: of which model, with which options and versions.
        steps: the records, in order.
    """

    metadata: TraceMetadata
    steps: list[StepRecord] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, idx: int) -> StepRecord: ...

    @overload
    def __getitem__(self, idx: slice) -> Trace: ...

    def __getitem__(self, idx: int | slice) -> StepRecord | Trace:
        """A record, or a trace of some of them with the same metadata."""
        return Trace(self.metadata, self.steps[idx]) if isinstance(idx, slice) else self.steps[idx]

    def save_jsonl(self, path: str | PathLike[str]) -> None:
        """Write a line of metadata and then one line a step. An existing file is replaced.

        Raises:
            OSError: the file cannot be written.
        """
        write_jsonl(path, self.metadata, self.steps)

    @classmethod
    def load_jsonl(cls, path: str | PathLike[str]) -> Trace:
        """Read what `save_jsonl` wrote; the result is equal to the trace that was saved.

        Raises:
            TraceFormatError: the file is not such a trace; the message gives the line.
            OSError: the file cannot be read.
        """
        return cls(*read_jsonl(path))

    def save_timeline(self, path: str | PathLike[str]) -> None:
        """Draw the trace: one row a sequence, one column a step. `.svg` is the picture alone, `.html` a page with the
        picture and the summary as a table; both need nothing else. An existing file is replaced.

        Raises:
            ValueError: the name ends neither in .svg nor in .html.
            OSError: the file cannot be written.
        """
        renderers = {".svg": timeline_svg, ".html": timeline_html}
        render = renderers.get(Path(path).suffix.lower())
        if render is None:
            raise ValueError(f"path={str(path)!r} must end in .svg or .html: that says which kind of timeline to save")
        document = render(self.metadata, self.steps)
        with whole_file(path) as file:
            file.write(document)

    def summary(self) -> str:
        """A few lines of text: steps, tokens, requests, preemptions, mean batch, time per phase, hit rate."""
        return str(summarize(self.metadata, self.steps))
