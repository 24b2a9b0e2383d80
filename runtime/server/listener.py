"""The port a server listens on, and BackgroundServer: a server on a thread of its own, for tests and notebooks."""

from __future__ import annotations

import errno
import socket
import threading
from types import TracebackType
from typing import Self

from ..errors import InvalidConfigError
from ..llm import LLM
from .config import ServerConfig
from .lifecycle import DrainingServer
from .service import EngineService

_START_SECONDS = 30.0


def bound_socket(config: ServerConfig) -> socket.socket:
    """A socket on the address of the options, on which nobody listens yet: clients are refused until a server does.

    Raises:
        InvalidConfigError: there is no such address here, or the port is taken.
    """
    where = f"port={config.port} at host={config.host!r}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidConfigError(f"{where} cannot be listened on ({error.strerror}); {_advice(error)}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise InvalidConfigError(f"{where} cannot be listened on ({error.strerror}); {_advice(error)}") from error
    return bound


def _advice(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "choose an address of this machine for the host"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "choose a port above 1023: those below are the system's"
    return "choose another port" if error.errno == errno.EADDRINUSE else "choose another address"


def url_of(listening: socket.socket) -> str:
    """Where a client of this machine finds it."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


class BackgroundServer:
    """A server on a thread of this process, over an LLM that is there already. A context manager.

        with BackgroundServer(llm) as server:
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")

    Args:
        config: port 0 takes a free one.

    Raises:
        InvalidConfigError: the port is taken.

    Attributes:
        url: where it listens.
        service: what is behind it.
    """

    def __init__(self, llm: LLM, config: ServerConfig | None = None) -> None:
        self.config = config or ServerConfig(port=0)
        self.service = EngineService(llm, self.config)
        self._socket = bound_socket(self.config)
        self.url = url_of(self._socket)
        self._is_started = threading.Event()
        self._server = DrainingServer(self.service, self._is_started.set)
        self._thread = threading.Thread(target=self._run, name="ramet-server", daemon=True)

    def start(self) -> None:
        """Returns when requests are taken."""
        self._thread.start()
        if not self._is_started.wait(_START_SECONDS):
            raise TimeoutError(f"the server did not start within {_START_SECONDS:g} s")

    def stop(self) -> None:
        """Begin to drain, and return at once; called again, do not wait for what runs any longer."""
        self._server.stop()

    def close(self) -> None:
        """Let what runs come to its end, for the drain time at most, and end. Idempotent."""
        if self._thread.is_alive():
            self.stop()
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
