"""The port a server listens on, and BackgroundServer: a server on a thread of its own, for tests and notebooks."""

from __future__ import annotations

import errno
import socket
import threading
from importlib.util import find_spec
from types import TracebackType
from typing import Self

from ..errors import InvalidConfigError
from ..llm import LLM
from .config import ServerConfig
from .lifecycle import DrainingServer
from .service import EngineService

_START_SECONDS = 30.0
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""What listens everywhere, and the one of its addresses that clients of this machine use."""


def bound_socket(config: ServerConfig) -> socket.socket:
    """A socket that listens on the address of the options, so that nobody else can take it while the model is loaded.
    Clients that come before a server takes it over wait to be served.

    Raises:
        InvalidConfigError: there is no such address here, or the port is taken, or gRPC's is, or gRPC is missing.
    """
    listening = _listening("port", config.host, config.port)
    try:
        _check_grpc(config)
    except InvalidConfigError:
        listening.close()
        raise
    return listening


def _listening(name: str, host: str, port: int) -> socket.socket:
    where = f"{name}={port} at host={host!r}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidConfigError(f"{where} cannot be listened on ({error.strerror}); {_advice(error)}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()  # before this, others may bind the same port
    except OSError as error:
        bound.close()
        raise InvalidConfigError(f"{where} cannot be listened on ({error.strerror}); {_advice(error)}") from error
    return bound


def _check_grpc(config: ServerConfig) -> None:
    """It takes no socket from us: all we can do before a model is loaded is to see whether its port is free now."""
    if config.grpc_port is None:
        return
    if find_spec("grpc") is None:
        raise InvalidConfigError("grpc_port needs the packages of gRPC: in ramet's checkout, pip install '.[grpc]'")
    _listening("grpc_port", config.host, config.grpc_port).close()


def _advice(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "choose an address of this machine for the host"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "choose a port above 1023: those below are the system's"
    return "choose another port" if error.errno == errno.EADDRINUSE else "choose another address"


def url_of(listening: socket.socket) -> str:
    """Where a client of this machine finds it."""
    host, port = listening.getsockname()[:2]
    return f"http://{client_address(host, port)}"


def client_address(host: str, port: int) -> str:
    """How a client of this machine names the port of a server that listens on `host`."""
    found = _EVERY_ADDRESS.get(host, host)
    return f"[{found}]:{port}" if ":" in found else f"{found}:{port}"


def is_every_address(host: str) -> bool:
    """Whether it stands for all addresses of this machine, of either kind."""
    return host in _EVERY_ADDRESS


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
        self._failure: BaseException | None = None
        self._server = DrainingServer(self.service, self._is_started.set)
        self._thread = threading.Thread(target=self._run, name="ramet-server", daemon=True)

    def start(self) -> None:
        """Returns when requests are taken. Raises what keeps it from that, such as gRPC's port, taken meanwhile."""
        self._thread.start()
        if not self._is_started.wait(_START_SECONDS):
            raise TimeoutError(f"the server did not start within {_START_SECONDS:g} s")
        if self._failure is not None:
            self.close()
            raise self._failure

    @property
    def num_cut_off(self) -> int:
        """Requests that were ended because the server was."""
        return self._server.num_cut_off

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
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as error:
            if self._is_started.is_set():
                raise
            self._failure = error
            self._is_started.set()
