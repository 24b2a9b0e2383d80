"""Servers over the bundled model, on loopback, for the tests of every family of endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from ramet import LLM
from ramet.runtime.server import app
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.listener import BackgroundServer

from .engine_gate import EngineGate
from .plain_route import router as plain_router

Serve = Callable[..., BackgroundServer]


@pytest.fixture(scope="session")
def server(smollm2: LLM) -> Iterator[BackgroundServer]:
    """A server with the usual options. Others use it too: its cache may hold anything."""
    with BackgroundServer(smollm2) as running:
        yield running


@pytest.fixture
def serve(smollm2: LLM) -> Iterator[Serve]:
    """Starts servers with other options; they end with the test."""
    with ExitStack() as stack:

        def start(llm: LLM | None = None, **options: Any) -> BackgroundServer:
            config = ServerConfig(port=0, **options)
            return stack.enter_context(BackgroundServer(llm or smollm2, config))

        yield start


@pytest.fixture
def gate(smollm2: LLM) -> Iterator[EngineGate]:
    """Open; closed, the engine of `smollm2` hangs at it."""
    made = EngineGate(smollm2)
    yield made
    made.open()
    smollm2.metrics()  # it goes on


@pytest.fixture
def serve_plain(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Like `serve`, with the endpoint of `plain_route.py` beside the others."""
    monkeypatch.setattr(app, "ROUTERS", (*app.ROUTERS, plain_router))
    return serve


@pytest.fixture
def http(server: BackgroundServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=60.0) as client:
        yield client
