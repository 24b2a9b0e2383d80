"""Profile: a trace of the engine's steps that is begun by one HTTP request and ended by another."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from ..llm import LLM
from ..trace.recorder import TraceRecorder


class Profile:
    """What the engine does from `start` to `stop`. Both wait for the engine's step."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._stack = ExitStack()
        self._recorder: TraceRecorder | None = None

    def start(self, num_steps: int) -> None:
        """Keep the last `num_steps`."""
        self._recorder = self._stack.enter_context(self._llm.trace(num_steps))

    def stop(self, form: str) -> bytes:
        """As "jsonl", "html" or "svg"."""
        assert self._recorder is not None, "start() comes first"
        self._stack.close()
        trace = self._recorder.trace
        with tempfile.TemporaryDirectory(prefix="ramet-profile-") as folder:
            path = Path(folder) / f"profile.{form}"
            if form == "jsonl":
                trace.save_jsonl(path)
            else:
                trace.save_timeline(path)
            return path.read_bytes()
