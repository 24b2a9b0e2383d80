"""Servers in processes of their own, as users start them, and the router before them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2

_START_S = 90.0
_ENVIRONMENT = {**os.environ, "NO_PROXY": "*", "RAMET_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Process:
    """One that listens.

    Attributes:
        log: file with all it has printed.
    """

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """At once, as a crash would end it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str], port: int, path: str, log: Path) -> Iterator[Process]:
    """Start it, and wait until it answers 200 to this path. It is ended on the way out."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=_ENVIRONMENT)
    started = Process(f"http://127.0.0.1:{port}", process, log)
    try:
        deadline = time.monotonic() + _START_S
        while not _answers(started.url + path):
            assert process.poll() is None, started.printed()[-3000:]
            assert time.monotonic() < deadline, f"{command[:4]} has not started: {started.printed()[-3000:]}"
            time.sleep(0.1)
        yield started
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def ramet_server(folder: Path, name: str, *options: str) -> contextlib.AbstractContextManager[Process]:
    port = free_port()
    command = [sys.executable, "-m", "ramet", "serve", "smollm2", "--port", str(port), *options]
    return running(command, port, "/ready", folder / f"{name}.log")


def sglang_router(folder: Path, workers: Sequence[str], *options: str) -> contextlib.AbstractContextManager[Process]:
    """In its usual mode, with cache-aware routing. Prometheus gets a free port as well."""
    port = free_port()
    command = [sys.executable, "-m", "sglang_router.launch_router", "--port", str(port), "--worker-urls", *workers]
    command += ["--prometheus-port", str(free_port()), "--policy", "cache_aware", *options]
    return running(command, port, "/health", folder / "router.log")


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=2.0).status_code == 200
    except httpx2.HTTPError:
        return False
