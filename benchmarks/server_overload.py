"""A server that is asked for ten times what it can do: see `benchmarks.server --overload`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from .server_client import Client, completion, prompts_of, send, send_all
from .server_process import ServerProcess

OVERLOAD_SEQS, OVERLOAD_TOKENS, OVERLOAD_FACTOR = 16, 16, 10
OVERLOAD_OPTIONS = {"max_num_seqs": OVERLOAD_SEQS, "max_waiting_sequences": 32, "kv_cache_memory": "64M"}
"""The cache is so small that it is full before memory is looked at: its pages are touched as they are used."""


@dataclass(frozen=True)
class Overload:
    """What became of requests.

    Attributes:
        num_unanswered: accepted, and their stream did not end as it should.
        rejection_ms: from the connection to the end of the answer, sorted.
        rss: bytes of the server's process, before, after the warm-up, and at the end.
    """

    capacity: float
    offered: float
    num_accepted: int
    num_rejected: int
    num_unanswered: int
    num_without_retry_after: int
    num_other: int
    rejection_ms: list[float]
    rss: tuple[float, float]

    def quantile(self, share: float) -> float:
        return self.rejection_ms[min(int(share * len(self.rejection_ms)), len(self.rejection_ms) - 1)]


def overload(server: ServerProcess, seconds: float) -> Overload:
    """Ten times as many requests a second as it can do, evenly."""
    capacity = _capacity(server)
    asyncio.run(_offer(server.address, OVERLOAD_FACTOR * capacity, min(5.0, seconds)))
    before = server.ask("usage")["rss"]
    clients = asyncio.run(_offer(server.address, OVERLOAD_FACTOR * capacity, seconds))
    after = server.ask("usage")["rss"]
    accepted = [client for client in clients if client.status == 200]
    rejected = [client for client in clients if client.status in (429, 503)]
    return Overload(
        capacity=capacity,
        offered=len(clients) / seconds,
        num_accepted=len(accepted),
        num_rejected=len(rejected),
        num_unanswered=sum(b"[DONE]" not in client.answer or b'"error"' in client.answer for client in accepted),
        num_without_retry_after=sum(b"retry-after: " not in client.answer for client in rejected),
        num_other=len(clients) - len(accepted) - len(rejected),
        rejection_ms=sorted(1000 * (client.last_at - client.began_at) for client in rejected),
        rss=(before, after),
    )


def _capacity(server: ServerProcess) -> float:
    """Requests a second, with as many at once as the engine takes."""
    count = 4 * OVERLOAD_SEQS
    began = time.perf_counter()
    for start in range(0, count, OVERLOAD_SEQS):
        prompts = prompts_of(f"capacity {start}", OVERLOAD_SEQS)
        asyncio.run(send_all(server.address, [completion(prompt, OVERLOAD_TOKENS) for prompt in prompts]))
    return count / (time.perf_counter() - began)


async def _offer(address: tuple[str, int], rate: float, seconds: float) -> list[Client]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    sending = []
    for idx in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + idx / rate - loop.time()))
        (prompt,) = prompts_of(f"offer {idx}", 1)
        sending.append(asyncio.create_task(send(address, completion(prompt, OVERLOAD_TOKENS))))
    return await asyncio.gather(*sending)


def report_overload(seconds: float, num_threads: int | None) -> str:
    options: dict[str, Any] = dict(OVERLOAD_OPTIONS)
    if num_threads is not None:
        options["num_threads"] = num_threads
    with ServerProcess(**options) as server:
        found = overload(server, seconds)
    growth = found.rss[1] / found.rss[0] - 1
    return "\n".join(
        [
            f"capacity {found.capacity:.1f} requests/s; offered {found.offered:.1f} requests/s for {seconds:g} s",
            f"accepted {found.num_accepted}, of which not answered: {found.num_unanswered}",
            f"rejected {found.num_rejected}, of which without Retry-After: {found.num_without_retry_after}; "
            f"other answers: {found.num_other}",
            f"a rejection takes {found.quantile(0.5):.1f} ms (p50), {found.quantile(0.99):.1f} ms (p99)",
            f"RSS {found.rss[0] / 2**20:.0f} MiB before, {found.rss[1] / 2**20:.0f} MiB after ({growth:+.1%})",
        ]
    )
