"""LiveCollector: looks at the engine a few times a second, once for all who watch, and not at all while nobody does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial

from ...errors import EngineStoppedError
from ..errors import ApiError
from ..service import EngineService
from ..tenant import NOBODY
from .observer import MAX_STEPS, EngineObserver, EngineView
from .wire import (
    SAMPLE_COLUMNS,
    STEP_COLUMNS,
    Json,
    Names,
    RunTexts,
    counters_json,
    memory_json,
    sample_row,
    sequences_json,
    step_row,
    tree_json,
)

logger = logging.getLogger(__name__)

PERIOD_S = 0.25
CACHE_PERIOD_S = 1.5
MAX_CACHE_SHARE = 0.01
"""Looking at the cache takes the engine no more than this share of its time: a large one is looked at less often."""
SAMPLE_PERIOD_S = 1.0
MAX_SAMPLES = 300
LINGER_S = 10.0
"""It goes on for so long when the last watcher has left: a page that is loaded again finds its history."""
MAX_WATCHERS = 32


class LiveCollector:
    """Belongs to the event loop. The engine's thread only takes the looks; JSON is made by the service's workers.

    An engine that does not answer holds up nobody: watchers are told for how long it has been silent.
    """

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._task: asyncio.Task[None] | None = None
        self._num_watchers = 0
        self._wanted_until = 0.0
        self._tick_idx = 0
        self._ticked: asyncio.Event = asyncio.Event()
        self._tick: Json = {}
        self._tree: Json | None = None
        self._tree_idx = 0
        self._steps: deque[list[float]] = deque(maxlen=MAX_STEPS)
        self._samples: deque[list[float]] = deque(maxlen=MAX_SAMPLES)
        self._names = Names(service.tenants.names)
        self._texts = RunTexts(service.llm.tokenizer)

    async def state(self) -> Json:
        """All that is known, from the next look on."""
        self._want()
        await self._next_tick(self._tick_idx)
        return self._state()

    async def watch(self) -> AsyncGenerator[tuple[str, Json], None]:
        """First ("state", all), then ("tick", what is new) as it comes, and ("tree", the cache) when that has changed.
        A watcher that fell behind is sent the state again. Ends when the server drains.

        Raises:
            ApiError: 429, before anything else, there are too many watchers.
        """
        if self._num_watchers >= MAX_WATCHERS:
            raise ApiError(429, f"{MAX_WATCHERS} watch already, the most that may", retry_after_s=LINGER_S)
        self._num_watchers += 1
        try:
            self._want()
            tick_idx, tree_idx = await self._next_tick(self._tick_idx), self._tree_idx
            yield "state", self._state()
            while not self._service.admission.is_draining:
                new_idx = await self._next_tick(tick_idx)
                if new_idx > tick_idx + 1:
                    tick_idx, tree_idx = new_idx, self._tree_idx
                    yield "state", self._state()
                    continue
                tick_idx = new_idx
                yield "tick", self._tick
                if tree_idx != self._tree_idx and self._tree is not None:
                    tree_idx = self._tree_idx
                    yield "tree", self._tree
        finally:
            self._num_watchers -= 1
            self._wanted_until = time.monotonic() + LINGER_S

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def is_looking(self) -> bool:
        """Whether steps are recorded now."""
        return self._task is not None and not self._task.done()

    def _want(self) -> None:
        self._wanted_until = time.monotonic() + LINGER_S
        if not self.is_looking:
            self._steps.clear()
            self._samples.clear()
            self._task = asyncio.get_running_loop().create_task(self._look_on())

    async def _look_on(self) -> None:
        observer = EngineObserver(self._service.llm.model_name)
        looker = _Looker(self._service, observer)
        try:
            while self._num_watchers or time.monotonic() < self._wanted_until:
                began = time.monotonic()
                await self._take(await looker.look())
                await asyncio.sleep(max(PERIOD_S - (time.monotonic() - began), PERIOD_S / 5))
        except Exception as error:
            if not isinstance(error, ApiError):  # such as that the server ends
                logger.exception("The live view failed, and begins anew when it is asked for again")
            self._publish({**self._tick, "engine": {"status": "unseen", "silent_s": 0.0}, "steps": []})
        finally:
            looker.stop()

    async def _take(self, seen: EngineView | str | float) -> None:
        if not isinstance(seen, EngineView):
            is_stopped = isinstance(seen, str)
            silence = 0.0 if isinstance(seen, str) else round(seen, 2)
            engine = {"status": "stopped" if is_stopped else "silent", "silent_s": silence}
            self._publish({**self._tick, "time": time.time(), "engine": engine, "steps": []})
            return
        tick, tree = await self._service.workers.call(NOBODY, lambda: self._render(seen))
        self._steps += tick["steps"]
        sample = sample_row(seen)
        if not self._samples or sample[0] - self._samples[-1][0] >= SAMPLE_PERIOD_S:
            self._samples.append(sample)
        if tree is not None and tree != self._tree:
            self._tree = tree
            self._tree_idx += 1
        self._publish(tick)

    def _render(self, view: EngineView) -> tuple[Json, Json | None]:
        """On a worker."""
        admission = self._service.admission
        tick = {
            "time": time.time(),
            "engine": {"status": "busy" if view.num_running or view.num_waiting else "idle", "silent_s": 0.0},
            "counters": counters_json(view),
            "memory": memory_json(view),
            "admission": {"live": admission.num_live, "most": admission.max_live, "rejected": admission.num_rejected},
            "num_running": view.num_running,
            "num_waiting": view.num_waiting,
            "running": sequences_json(view.running, view.time, self._names),
            "waiting": sequences_json(view.waiting, view.time, self._names),
            "sample": sample_row(view),
            "steps": [step_row(step) for step in view.steps],
        }
        return tick, None if view.cache is None else tree_json(view.cache, self._texts, self._names)

    # -- telling -----------------------------------------------------------------------------------------------------

    def _publish(self, tick: Json) -> None:
        self._tick = tick
        self._tick_idx += 1
        self._ticked.set()
        self._ticked = asyncio.Event()

    async def _next_tick(self, seen_idx: int) -> int:
        while self._tick_idx == seen_idx:
            self._want()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ticked.wait(), LINGER_S / 2)
        return self._tick_idx

    def _state(self) -> Json:
        config = self._service.llm.config
        return {
            **self._tick,
            "model": self._service.served_model_names[0],
            "limits": {
                "max_num_seqs": config.max_num_seqs,
                "max_num_batched_tokens": config.max_num_batched_tokens,
                "max_context_len": self._service.llm.max_context_len,
                "step_timeout_s": self._service.config.step_timeout_s,
            },
            "steps": {"columns": STEP_COLUMNS, "rows": list(self._steps)},
            "samples": {"columns": SAMPLE_COLUMNS, "rows": list(self._samples)},
            "tree": self._tree or {"hidden": 0, "runs": []},
        }


class _Looker:
    """Has one question open at a time, however long the engine takes to answer it."""

    def __init__(self, service: EngineService, observer: EngineObserver) -> None:
        self._service = service
        self._observer = observer
        self._open: asyncio.Future[EngineView] | None = None
        self._asked_at = 0.0
        self._cache_due = 0.0

    async def look(self) -> EngineView | str | float:
        """What was seen; for how many seconds the engine has not answered; or why it never will."""
        if self._open is None:
            self._asked_at = time.monotonic()
            look = partial(self._observer.look, is_cache_wanted=self._asked_at >= self._cache_due)
            self._open = self._service.ask(look)
        await asyncio.wait((self._open,), timeout=4 * PERIOD_S)
        if not self._open.done():
            return time.monotonic() - self._asked_at
        answered, self._open = self._open, None
        try:
            view = answered.result()
        except EngineStoppedError as error:
            return str(error)
        if view.cache is not None:
            self._cache_due = view.time + max(CACHE_PERIOD_S, view.cache_seconds / MAX_CACHE_SHARE)
        return view

    def stop(self) -> None:
        if self._open is not None:
            self._open.cancel()
        self._service.llm.tell(self._observer.stop)
