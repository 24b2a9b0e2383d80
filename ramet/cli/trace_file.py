"""`--trace FILE`: what the scheduler did during a command, as a picture or as JSON lines."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import CommandError

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from ..runtime.trace.recorder import TraceRecorder

SUFFIXES = (".html", ".svg", ".jsonl")


class TraceFile:
    """The file that a trace is to be written to.

    Raises:
        CommandError: its name does not say which kind of file, or its directory does not exist.
    """

    def __init__(self, name: str) -> None:
        self.path = Path(name)
        if self.path.suffix.lower() not in SUFFIXES:
            raise CommandError(
                f"--trace {name!r} must end in {', '.join(SUFFIXES[:-1])} (a timeline) or {SUFFIXES[-1]} (the records)"
            )
        if not self.path.absolute().parent.is_dir():
            raise CommandError(f"--trace {name!r}: the directory {str(self.path.parent)!r} does not exist")
        self._recorder: TraceRecorder | None = None

    def start(self, llm: LLM, stack: ExitStack) -> None:
        """Record from now on, until `stack` is closed."""
        self._recorder = stack.enter_context(llm.trace())

    def save(self) -> str:
        """Write what was recorded, if the program ever called the default backend. Returns a line to show.

        Raises:
            OSError: the file cannot be written.
        """
        if self._recorder is None:
            return "no call reached the default backend, so no trace was written (a program's own LLM has llm.trace())"
        trace = self._recorder.trace
        if self.path.suffix.lower() == ".jsonl":
            trace.save_jsonl(self.path)
        else:
            trace.save_timeline(self.path)
        return f"the trace of {len(trace)} steps is in {self.path}"
