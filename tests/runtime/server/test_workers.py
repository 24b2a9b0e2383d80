"""Workers that several tenants share: who gets one, and when."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.server.errors import ApiError
from ramet.runtime.server.workers import FairWorkers, Work


class Bench:
    """Workers whose jobs run until they are let go, and who they run for."""

    def __init__(self, num_workers: int, *, is_shared: bool, max_waiting: int | None = None) -> None:
        self.workers = FairWorkers("bench", num_workers, is_shared=is_shared, max_waiting=max_waiting)
        self.jobs: dict[str, deque[tuple[Work[str], threading.Event]]] = {}

    def start(self, tenant: str) -> Work[str]:
        ends = threading.Event()

        def wait() -> str:
            assert ends.wait(30)
            return tenant

        work = self.workers.start(tenant, wait)
        self.jobs.setdefault(tenant, deque()).append((work, ends))
        return work

    async def end(self, tenant: str) -> None:
        """The tenant's oldest job ends."""
        work, ends = self.jobs[tenant].popleft()
        ends.set()
        assert await work.result == tenant

    @property
    def running(self) -> dict[str, int]:
        counts = {tenant: sum(work.is_begun for work, _ in jobs) for tenant, jobs in self.jobs.items()}
        return {tenant: count for tenant, count in counts.items() if count}

    def close(self) -> None:
        for jobs in self.jobs.values():
            for _, ends in jobs:
                ends.set()
        self.workers.shutdown()


def run(bench: Callable[[], Bench], story: Callable[[Bench], Awaitable[None]]) -> None:
    async def whole() -> None:
        made = bench()
        try:
            await story(made)
        finally:
            made.close()

    asyncio.run(whole())


def test_one_tenant_of_several_leaves_half_of_the_workers_to_others() -> None:
    async def story(bench: Bench) -> None:
        for _ in range(8):
            bench.start("alice")
        assert bench.running == {"alice": 2}
        bench.start("bob")
        assert bench.running == {"alice": 2, "bob": 1}
        bench.start("carol")
        bench.start("dora")
        assert bench.running == {"alice": 2, "bob": 1, "carol": 1}
        await bench.end("alice")
        assert bench.running == {"alice": 1, "bob": 1, "carol": 1, "dora": 1}  # and not alice's third

    run(lambda: Bench(4, is_shared=True), story)


def test_an_only_tenant_has_all_workers() -> None:
    async def story(bench: Bench) -> None:
        for _ in range(8):
            bench.start("anybody")
        assert bench.running == {"anybody": 4}

    run(lambda: Bench(4, is_shared=False), story)


def test_what_is_dropped_is_not_begun_and_what_is_begun_is_not_dropped() -> None:
    async def story(bench: Bench) -> None:
        begun, waiting, last = (bench.start("alice") for _ in range(3))
        begun.drop()
        waiting.drop()
        assert not begun.result.done()
        await bench.end("alice")
        del bench.jobs["alice"][0]
        assert (waiting.is_begun, last.is_begun) == (False, True)
        await bench.end("alice")

    run(lambda: Bench(1, is_shared=True), story)


def test_too_many_that_wait_are_429_for_their_tenant_only() -> None:
    async def story(bench: Bench) -> None:
        for _ in range(3):
            bench.start("alice")
        with pytest.raises(ApiError, match="2 requests of this kind") as caught:
            bench.start("alice")
        assert caught.value.status == 429
        bench.start("bob")

    run(lambda: Bench(2, is_shared=True, max_waiting=2), story)


def test_failures_are_those_of_the_work_and_the_end_cancels_what_waits() -> None:
    async def story(bench: Bench) -> None:
        def fail() -> None:
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            await bench.workers.start("alice", fail).result
        bench.start("alice")
        waiting = bench.start("alice")
        bench.workers.shutdown()
        with pytest.raises(asyncio.CancelledError):
            await waiting.result

    run(lambda: Bench(1, is_shared=True), story)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.lists(st.sampled_from(["a", "b", "c", "-a", "-b", "-c"]), max_size=40))
def test_nobody_has_more_than_a_share_and_no_worker_is_idle_without_need(num_workers: int, moves: list[str]) -> None:
    async def story(bench: Bench) -> None:
        share = max(num_workers // 2, 1)
        wanted: Counter[str] = Counter()
        for move in moves:
            tenant = move[-1]
            if move == tenant:
                bench.start(tenant)
                wanted[tenant] += 1
            elif bench.jobs.get(tenant) and bench.jobs[tenant][0][0].is_begun:
                await bench.end(tenant)
                wanted[tenant] -= 1
            most = {name: min(count, share) for name, count in wanted.items()}
            assert all(count <= most[name] for name, count in bench.running.items())
            assert sum(bench.running.values()) == min(num_workers, sum(most.values()))

    run(lambda: Bench(num_workers, is_shared=True), story)
