"""What large requests leave behind does not stay."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from ramet.runtime.server import memory
from ramet.runtime.server.memory import Sweeper, sweep


class Node:
    """In a cycle with itself."""

    def __init__(self) -> None:
        self.itself = self


def test_a_sweep_frees_cycles() -> None:
    gc.disable()
    try:
        gone = weakref.ref(Node())
        assert gone() is not None
        sweep()
        assert gone() is None
    finally:
        gc.enable()


def test_sweeps_come_with_large_requests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[None] = []
    monkeypatch.setattr(memory, "sweep", lambda: swept.append(None))
    monkeypatch.setattr(memory, "_SWEEP_DELAY_S", 0.0)

    async def main() -> None:
        sweeper = Sweeper()
        for _ in range(100):
            sweeper.note_gone(1000)
        await asyncio.sleep(0.05)
        assert swept == []
        for _ in range(2):
            for _ in range(5):
                sweeper.note_gone(16 << 20)
            num_before = len(swept)
            while len(swept) == num_before:
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert len(swept) == 2
