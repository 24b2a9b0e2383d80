"""DrainingServer: uvicorn's server, which ends when everything it has taken on is answered.

    first stop     requests are refused with 503, and `/ready` says so, while what runs goes on; who has not sent the
                   whole of a request is not waited for
    all is answered, or the drain time is over, or second stop
                   what still runs ends with an error that says why
    then           the port is closed, what is written already is sent, connections are closed

uvicorn by itself closes the port first, so that nobody can be told that it drains, and waits for clients for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Generator
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.server import HANDLED_SIGNALS

from ...counted import counted
from .app import build_app
from .config import ServerConfig
from .protocol import HttpProtocol
from .service import EngineService

logger = logging.getLogger(__name__)

_IDLE_TICK_SECONDS = 0.1
"""What uvicorn reckons with, to set its clock once a second."""
_TICK_SECONDS = 0.01
_LAST_WORDS_SECONDS = 1.0
"""For clients to take what was written to them last."""


class DrainingServer(uvicorn.Server):
    """Serves an engine until it is stopped.

    Args:
        on_started: called once requests are taken.

    Attributes:
        num_cut_off: requests that were ended because the server was.
    """

    def __init__(self, service: EngineService, on_started: Callable[[], None]) -> None:
        self._app = build_app(service)
        super().__init__(_uvicorn_config(self._app, service.config))
        self.num_cut_off = 0
        self._on_started = on_started
        self._service = service
        self._num_stops = 0
        self._deadline = float("inf")

    def stop(self) -> None:
        """Drain; called again, do not wait any longer. From any thread, and from the handler of a signal."""
        self._num_stops += 1
        is_first = self._num_stops == 1
        self._service.admission.is_draining = True
        self._deadline = time.monotonic() + (self._service.config.drain_timeout_s if is_first else 0.0)

    def stopping(self) -> str:
        """What it is waiting for, in words, once it was told to stop."""
        num_answering = self._service.num_answering
        if not num_answering:
            return "stopping"
        waited_for = counted(num_answering, "request")
        if self._num_stops > 1:
            return f"stopping at once: {waited_for} cut off"
        seconds = self._service.config.drain_timeout_s
        return f"stopping: waiting up to {seconds:g} s for {waited_for}; press Ctrl-C again to stop at once"

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Nothing: `stop_on_signals` is for whoever owns the process."""
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """
        Raises:
            InvalidConfigError: the port of gRPC is taken.
        """
        async with self._app.router.lifespan_context(self._app):  # uvicorn would log what it raises, and exit
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def main_loop(self) -> None:
        num_ticks = 0
        while not self._is_drained():
            await self.on_tick(num_ticks)
            num_ticks += 1
            await asyncio.sleep(_TICK_SECONDS if self._num_stops else _IDLE_TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.num_cut_off = self._service.end_all()
        if self.num_cut_off:
            logger.warning("%s cut off by the end of the server", counted(self.num_cut_off, "request"))
        self._service.workers.end_calls()
        for server in self.servers:
            server.close()
        for listening in sockets or ():
            listening.close()
        connections, tasks = self.server_state.connections, self.server_state.tasks
        for connection in tuple(connections):
            connection.shutdown()
        last_words_at = time.monotonic() + _LAST_WORDS_SECONDS
        while (connections or tasks) and time.monotonic() < max(self._deadline, last_words_at):
            await asyncio.sleep(_TICK_SECONDS)
        for connection in tuple(connections):
            connection.transport.abort()
        if tasks:  # they hear that their clients are gone
            await asyncio.wait(tuple(tasks), timeout=_LAST_WORDS_SECONDS)
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_drained(self) -> bool:
        if not self._num_stops:
            return False
        connections = [each for each in self.server_state.connections if isinstance(each, HttpProtocol)]
        for connection in connections:
            connection.refuse_unfinished()
        if time.monotonic() >= self._deadline or self._service.engine_fault() is not None:
            return True
        return not self._service.is_answering and not any(connection.is_answering for connection in connections)


@contextlib.contextmanager
def stop_on_signals(server: DrainingServer) -> Generator[None, None, None]:
    """In this block SIGTERM and Ctrl-C stop the server, which says so on standard error. Only on the main thread."""

    def handle(signal_number: int, frame: FrameType | None) -> None:
        server.stop()
        with contextlib.suppress(OSError):  # not by the stream, which may be in the middle of a write
            os.write(2, f"ramet: {server.stopping()}\n".encode())

    before = {number: signal.signal(number, handle) for number in HANDLED_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _uvicorn_config(app: FastAPI, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=partial(HttpProtocol, limits=config),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
    )
