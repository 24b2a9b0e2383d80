"""Runs a server in a process of its own: it has the signals, and ends with it."""

from __future__ import annotations

import logging
import resource
import socket
import threading
from collections.abc import Callable

from ..llm import LLM
from .config import ServerConfig
from .lifecycle import DrainingServer, stop_on_signals
from .memory import settle
from .service import EngineService
from .tenant import Tenants

logger = logging.getLogger(__name__)

_FILES_BESIDE_CONNECTIONS = 256


def serve(
    llm: LLM,
    config: ServerConfig,
    tenants: Tenants,
    listening: socket.socket,
    on_ready: Callable[[int | None], None],
) -> int:
    """Serve until SIGTERM or Ctrl-C, and then until what runs has ended; a second signal does not wait for it. On the
    main thread. The LLM is its owner's to shut down.

    Args:
        listening: of `bound_socket`; closed at the end.
        on_ready: called once requests are taken, with the port of gRPC; None if it is not spoken.

    Returns:
        How many requests were cut off.
    """
    _allow_open_files(config.max_connections + _FILES_BESIDE_CONNECTIONS)
    settle()
    service = EngineService(llm, config, tenants)
    server = DrainingServer(service, lambda: on_ready(service.grpc_port))
    with stop_on_signals(server):
        server.run(sockets=[listening])
    return server.num_cut_off


def shut_down_within(llm: LLM, seconds: float) -> bool:
    """Shut it down. False if it has not ended within the time, because a step hangs: then nothing but the end of the
    process ends it."""
    ending = threading.Thread(target=llm.shutdown, name="ramet-shutdown", daemon=True)
    ending.start()
    ending.join(seconds)
    return not ending.is_alive()


def _allow_open_files(num_files: int) -> None:
    """A connection is an open file, of which a process may have 1,024 by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= num_files:
        return
    most = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < num_files:
        logger.warning(
            "the system allows %d open files, too few for so many connections: raise it with ulimit -n", most
        )
