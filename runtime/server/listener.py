"""Listener: the application on a port, in this thread or, for tests and notebooks, on a thread of its own."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn

from ..llm import LLM
from .app import build_app
from .config import ServerConfig
from .service import EngineService

_START_SECONDS = 30.0


def uvicorn_config(service: EngineService, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        build_app(service),
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=config.max_header_bytes,
        limit_concurrency=config.max_connections,
        timeout_keep_alive=30,
    )


class BackgroundServer:
    """A server on a thread of this process, over an LLM that is there already. A context manager.

        with BackgroundServer(llm) as server:
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")

    Args:
        config: port 0 takes a free one.

    Attributes:
        url: where it listens.
        service: what is behind it.
    """

    def __init__(self, llm: LLM, config: ServerConfig | None = None) -> None:
        self.config = config or ServerConfig(port=0)
        self.service = EngineService(llm, self.config)
        self._socket = socket.create_server((self.config.host, self.config.port))
        self._server = uvicorn.Server(uvicorn_config(self.service, self.config))
        self._thread = threading.Thread(target=self._run, name="ramet-server", daemon=True)

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://{host}:{port}"

    def start(self) -> None:
        """Returns when requests are taken."""
        started = threading.Event()
        startup = self._server.startup

        async def announced(sockets: list[socket.socket] | None = None) -> None:
            await startup(sockets)
            started.set()

        self._server.startup = announced  # type: ignore[method-assign]
        self._thread.start()
        if not started.wait(_START_SECONDS):
            raise TimeoutError(f"the server did not start within {_START_SECONDS:g} s")

    def close(self) -> None:
        """Let what runs come to its end, for the drain time at most. Idempotent."""
        self._server.should_exit = True
        self._thread.join(self.config.drain_timeout_s)
        self._server.force_exit = True
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])
