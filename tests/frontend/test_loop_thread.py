"""LoopThread: its outcome is that of the coroutine, whatever that is."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError, Future

import pytest

from ramet.frontend import loop_thread
from ramet.frontend.loop_thread import LoopThread


def test_a_timeout_of_the_coroutine_is_its_outcome_and_one_of_the_wait_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "done"

    async def times_out() -> str:
        await asyncio.sleep(0.05)
        raise TimeoutError("mine")

    monkeypatch.setattr(loop_thread, "HEARTBEAT_S", 0.0001)
    assert LoopThread(slow, "test").result() == "done"
    with pytest.raises(TimeoutError, match="mine"):
        LoopThread(times_out, "test").result()


def test_cancel_in_its_own_thread_does_not_wait() -> None:
    threads: Future[LoopThread[None]] = Future()

    async def main() -> None:
        threads.result().cancel()
        await asyncio.sleep(60)

    thread = LoopThread(main, "test")
    threads.set_result(thread)
    with pytest.raises((asyncio.CancelledError, CancelledError)):
        thread.result()
