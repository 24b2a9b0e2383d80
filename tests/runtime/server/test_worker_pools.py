"""Threads for what would hold up the event loop: who gets them, for how long, and what else goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest

from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.errors import ApiError
from ramet.runtime.server.worker_pools import WorkerPools

Story = Callable[[WorkerPools], Awaitable[None]]
SHARED = ServerConfig(api_keys=("alice=alices-key", "bob=bobs-key-1"))


@pytest.fixture
def is_over() -> Iterator[threading.Event]:
    """Lets go of workers that wait for it."""
    event = threading.Event()
    yield event
    event.set()


def run(config: ServerConfig, story: Story) -> None:
    async def whole() -> None:
        pools = WorkerPools(config)
        try:
            await story(pools)
        finally:
            pools.close()

    asyncio.run(whole())


@pytest.mark.parametrize("kind", ["read", "call", "call_aside"])
def test_what_one_tenant_asks_for_keeps_no_other_waiting(is_over: threading.Event, kind: str) -> None:
    async def story(pools: WorkerPools) -> None:
        start = {"read": pools.read, "call": pools.call, "call_aside": pools.call_aside}[kind]
        held = [asyncio.ensure_future(start("alice", lambda: is_over.wait(30))) for _ in range(8)]
        await asyncio.sleep(0)
        assert await start("bob", lambda: True)
        assert not any(each.done() for each in held)
        is_over.set()
        assert all(await asyncio.gather(*held))

    run(SHARED, story)


def test_no_kind_of_work_waits_for_another(is_over: threading.Event) -> None:
    async def story(pools: WorkerPools) -> None:
        held = [pools.prepare("alice", lambda: is_over.wait(30), is_constrained=True) for _ in range(8)]
        for call in (pools.read, pools.call, pools.call_aside):
            assert await call("alice", lambda: True)
        assert await pools.prepare("alice", lambda: True, is_constrained=False).result
        assert not any(each.result.done() for each in held)
        is_over.set()

    run(ServerConfig(), story)


def test_who_waits_too_long_is_told_so(is_over: threading.Event) -> None:
    async def story(pools: WorkerPools) -> None:
        with pytest.raises(ApiError) as caught:
            await pools.call("alice", lambda: is_over.wait(30))
        assert (caught.value.status, caught.value.code) == (504, "timeout")

    run(ServerConfig(request_timeout_s=0.1), story)


def test_too_many_that_only_want_tokens_are_told_to_come_again(is_over: threading.Event) -> None:
    async def story(pools: WorkerPools) -> None:
        held = [asyncio.ensure_future(pools.call_aside("alice", lambda: is_over.wait(30))) for _ in range(65)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await pools.call_aside("alice", lambda: True)
        assert caught.value.status == 429
        pools.end_calls()
        for each in held:
            with pytest.raises(ApiError, match="shutting down"):
                await each

    run(SHARED, story)
