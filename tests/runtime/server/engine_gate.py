"""An engine that hangs, and goes on again."""

from __future__ import annotations

import threading
import time

import httpx2

from ramet import LLM
from ramet.runtime.engine import Engine


class EngineGate:
    """Holds up an engine's thread between two steps, from `close` to `open`."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._opened = threading.Event()

    def close(self) -> None:
        """The engine hangs when this returns."""
        is_reached, self._opened = threading.Event(), threading.Event()
        opened = self._opened

        def wait(engine: Engine) -> None:
            is_reached.set()
            opened.wait(60)

        self._llm.tell(wait)
        assert is_reached.wait(30)

    def open(self) -> None:
        self._opened.set()


def wait_until_unhealthy(client: httpx2.Client) -> httpx2.Response:
    give_up_at = time.monotonic() + 30
    while (answer := client.get("/health")).status_code == 200:
        assert time.monotonic() < give_up_at
    return answer
