"""`--trace FILE`: what the programs and the scheduler did during a command, as a page, a picture, or JSON lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..counted import counted
from .errors import CommandError

if TYPE_CHECKING:
    from ..frontend.trace.page import PagePart
    from ..runtime.llm import LLM
    from ..runtime.trace.recorder import TraceRecorder
    from ..runtime.trace.trace import Trace
    from .recording_backend import RecordingBackend

SUFFIXES = (".html", ".svg", ".txt", ".jsonl")
STEPS_SUFFIX = ".steps.jsonl"

_TABLE_HEIGHT = 420  # of the figures above the picture of the steps
_MAX_FRAME_HEIGHT = 1400


class TraceFile:
    """The file that a trace is to be written to.

    `.html` is a page with the programs, the cache and the engine's steps; `.svg` the steps as a picture; `.txt` the
    programs as text; `.jsonl` the programs as records, with the steps in a second file whose name ends in
    `.steps.jsonl`.

    Raises:
        CommandError: its name does not say which kind of file, or its directory does not exist.
    """

    def __init__(self, name: str) -> None:
        self.path = Path(name)
        self._target = self.path.absolute()  # now: the program may change its directory
        if self.path.suffix.lower() not in SUFFIXES:
            raise CommandError(
                f"--trace {name!r} must end in .html (a page), .svg (the engine's steps), .txt or .jsonl"
            )
        if not self.path.absolute().parent.is_dir():
            raise CommandError(f"--trace {name!r}: the directory {str(self.path.parent)!r} does not exist")
        self._recording = ExitStack()
        self._recorder: TraceRecorder | None = None

    def start(self, llm: LLM, stack: ExitStack) -> None:
        """Record the engine's steps from now on, until `save` or until `stack` is closed."""
        self._recorder = self._recording.enter_context(llm.trace())
        stack.callback(self._end_recording)

    def save(self, backend: RecordingBackend) -> str:
        """Write what was recorded, if the program ever used the default backend. Returns a line to show.

        Ends the recording. Programs that still run are shown as far as they have come.

        Raises:
            OSError: the file cannot be written.
        """
        traces = backend.traces()
        cache = backend.cache_tree() if traces else None
        self._end_recording()  # first, or the engine may add a step while the steps are read
        steps = None if self._recorder is None else self._recorder.trace
        suffix = self.path.suffix.lower()
        if steps is None and (suffix == ".svg" or not traces):
            return "no call reached the default backend, so no trace was written (a program's own LLM has llm.trace())"
        if suffix == ".svg":
            assert steps is not None
            steps.save_timeline(self._target)
            return f"the trace of {counted(len(steps), 'step')} is in {self.path}"
        from ..frontend.trace.files import save_traces

        parts = () if steps is None or suffix != ".html" else (_steps_part(steps),)
        save_traces(traces, self._target, cache=cache, parts=parts)
        runs = f"the trace of {counted(len(traces), 'run')}"
        if suffix == ".txt" or steps is None:
            return f"{runs} is in {self.path}"
        if suffix == ".html":
            return f"{runs} and {counted(len(steps), 'step')} is in {self.path}"
        steps_path = self.path.with_suffix(STEPS_SUFFIX)
        steps.save_jsonl(self._target.with_suffix(STEPS_SUFFIX))
        return f"{runs} is in {self.path}, that of {counted(len(steps), 'step')} is in {steps_path}"

    def _end_recording(self) -> None:
        """Idempotent."""
        from ..runtime.errors import EngineStoppedError

        with suppress(EngineStoppedError):  # the program has shut its LLM down: no step is added any more
            self._recording.close()


def _steps_part(steps: Trace) -> PagePart:
    """The engine's steps as a part of the page, as high as its picture if that is not too high."""
    from ..frontend.trace.page import PagePart
    from ..runtime.trace.timeline import timeline_html

    document = timeline_html(steps.metadata, steps.steps)
    heights: Sequence[str] = re.findall(r'<svg[^>]*\sheight="(\d+)', document)
    height = _TABLE_HEIGHT + int(heights[0]) if heights else _MAX_FRAME_HEIGHT
    return PagePart("Steps of the engine", document, min(height, _MAX_FRAME_HEIGHT))
