"""Profile: a trace of the engine's steps that is begun by one HTTP request and ended by another."""

from __future__ import annotations

import tempfile
from enum import Enum, auto
from pathlib import Path

from ..engine import Engine
from ..trace.recorder import TraceRecorder
from ..trace.trace import Trace
from .errors import ApiError
from .service import EngineService
from .tenant import NOBODY


class _State(Enum):
    IDLE = auto()
    STARTING = auto()
    RUNNING = auto()
    STOPPING = auto()


class Profile:
    """What the engine does from `start` to `stop`, again and again. On the event loop.

        IDLE --start--> STARTING ------> RUNNING --stop--> STOPPING ------> IDLE
          ^---- it failed --'               ^-- the engine hangs --'

    Who comes in between is told so. Whatever fails or is cancelled, the engine does not go on writing for nobody.
    """

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._state = _State.IDLE
        self._recorders: list[TraceRecorder] = []

    async def start(self, num_steps: int) -> None:
        """Keep the last `num_steps`. Waits for the engine's step.

        Raises:
            ApiError: 409, a profile is being written; 503, the engine is not well.
        """
        if self._state is not _State.IDLE:
            what = {
                _State.STARTING: "a profile is being started",
                _State.RUNNING: "a profile is being written: POST /stop_profile ends it",
                _State.STOPPING: "the last profile is being ended: try again when it was answered",
            }
            raise ApiError(409, what[self._state], code="profile_running")
        self._state = _State.STARTING
        self._recorders = recorders = []  # filled by the engine, maybe when nobody waits for it any more

        def begin(engine: Engine) -> None:
            recorders.append(engine.start_trace(self._service.llm.model_name, num_steps))

        try:
            await self._service.ask_while_well(begin)
        except BaseException:
            self.close()
            raise
        self._state = _State.RUNNING

    async def stop(self, form: str) -> bytes:
        """As "jsonl", "html" or "svg". Waits for the engine's step.

        Raises:
            ApiError: 409, no profile is being written; 503, the engine is not well: the profile goes on.
        """
        if self._state is not _State.RUNNING:
            what = {
                _State.IDLE: "no profile is being written: POST /start_profile begins one",
                _State.STARTING: "the profile is only being started: try again when /start_profile was answered",
                _State.STOPPING: "the profile is being ended already",
            }
            raise ApiError(409, what[self._state], code="no_profile")
        (recorder,) = self._recorders
        self._state = _State.STOPPING
        try:
            await self._service.ask_while_well(lambda engine: engine.stop_trace(recorder))
        except BaseException:
            self._state = _State.RUNNING
            raise
        try:
            return await self._service.workers.call(NOBODY, lambda: _written(recorder.trace, form))
        finally:
            self._recorders = []
            self._state = _State.IDLE

    def close(self) -> None:
        """Write down nothing more, and forget what was. Waits for nothing. Idempotent."""
        recorders, self._recorders = self._recorders, []
        self._state = _State.IDLE

        def end(engine: Engine) -> None:
            for recorder in recorders:
                engine.stop_trace(recorder)

        self._service.llm.tell(end)


def _written(trace: Trace, form: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="ramet-profile-") as folder:
        path = Path(folder) / f"profile.{form}"
        if form == "jsonl":
            trace.save_jsonl(path)
        else:
            trace.save_timeline(path)
        return path.read_bytes()
