"""What the engine's thread says reaches the loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ramet.runtime.server.chunk_bridge import ChunkBridge


def fail() -> None:
    raise ValueError("impossible")


def test_one_call_that_raises_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[int]:
        bridge = ChunkBridge()
        bridge.open()
        delivered: list[int] = []
        done = asyncio.Event()

        def post_all() -> None:
            for idx in range(100):
                bridge.post(lambda idx=idx: delivered.append(idx))  # type: ignore[misc]
                bridge.post(fail)
            bridge.post(done.set)

        thread = threading.Thread(target=post_all)
        thread.start()
        await asyncio.wait_for(done.wait(), timeout=30)
        thread.join()
        return delivered

    assert asyncio.run(main()) == list(range(100))
    assert len(caplog.records) == 100


def test_what_is_posted_after_the_loop_is_dropped() -> None:
    bridge = ChunkBridge()

    async def main() -> None:
        bridge.open()

    asyncio.run(main())
    bridge.post(fail)
