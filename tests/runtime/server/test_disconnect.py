"""Clients that go away, or stop reading: nothing of theirs stays behind."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import resource
import socket
import time
from contextlib import suppress

import httpx2
import pytest

from ramet import LLM
from ramet.runtime.engine import Engine
from ramet.runtime.server.listener import BackgroundServer

from .conftest import Serve

pytestmark = pytest.mark.model


def address(server: BackgroundServer) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


def sent(max_tokens: int, prompt: str = "Once upon a time", *, is_streamed: bool = True) -> bytes:
    body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "stream": is_streamed}).encode()
    head = (
        f"POST /plain HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    return f"{head}\r\n".encode() + body


async def drop(server: BackgroundServer, random_source: random.Random, is_reset: bool) -> int:
    """Send a request, read a random number of bytes, go. Returns how many came."""
    reader, writer = await asyncio.open_connection(*address(server))
    request = sent(300, f"Client {random_source.random()} ", is_streamed=random_source.random() < 0.9)
    kind = random_source.randrange(10)
    if kind == 0:  # before all of the request is sent
        request = request[: random_source.randrange(len(request))]
    writer.write(request)
    await writer.drain()
    num_bytes = 0
    if kind > 1:  # some go at once
        for _ in range(random_source.randrange(1, 350)):
            if not await reader.read(1):
                break
            num_bytes += 1
    if is_reset:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    writer.close()
    return num_bytes


async def storm(server: BackgroundServer, num_clients: int, num_at_once: int) -> int:
    random_source = random.Random(num_clients)
    room = asyncio.Semaphore(num_at_once)

    async def client(idx: int) -> int:
        async with room:
            try:
                return await asyncio.wait_for(drop(server, random.Random(random_source.random()), idx % 2 == 0), 120)
            except TimeoutError:
                return -1

    counts = await asyncio.gather(*(client(idx) for idx in range(num_clients)))
    assert min(counts) >= 0, "a client waited for 120 s"
    return sum(count > 0 for count in counts)


def num_held_blocks(engine: Engine) -> int:
    return engine.cache.num_private_blocks + engine.cache.num_tree_blocks - engine.cache.num_evictable_blocks


def wait_until_idle(server: BackgroundServer, seconds: float) -> float:
    """How long it takes until nothing is live and no block is held."""
    began = time.monotonic()
    while True:
        held = server.service.llm._loop.call(num_held_blocks)
        if server.service.admission.num_live == 0 and held == 0:
            return time.monotonic() - began
        assert time.monotonic() - began < seconds, (server.service.admission.num_live, held)
        time.sleep(0.005)


def cpu_seconds(seconds: float) -> float:
    """What the process uses while nobody asks anything."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(seconds)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("num_clients", [100, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_clients_dropped_at_random_bytes_leave_nothing(serve_plain: Serve, smollm2: LLM, num_clients: int) -> None:
    server = serve_plain()
    smollm2.reset_prefix_cache()
    wait_until_idle(server, 10)
    num_answered = asyncio.run(storm(server, num_clients, 48))
    assert num_answered > num_clients / 4
    seconds = wait_until_idle(server, 10)
    print(f"{num_clients} clients dropped, {num_answered} after some bytes; idle {seconds:.3f} s later")
    assert not server.service._running
    smollm2.reset_prefix_cache()
    assert smollm2.cache_snapshot().num_free_blocks == smollm2.cache_snapshot().num_blocks
    busy = cpu_seconds(1.0)
    print(f"CPU while idle: {busy:.3f} s in 1 s")
    assert busy < 0.5
    assert httpx2.post(f"{server.url}/plain", json={"max_tokens": 3}, timeout=60).status_code == 200


def test_a_client_that_leaves_is_gone_within_two_steps(serve_plain: Serve, smollm2: LLM) -> None:
    server = serve_plain()
    for is_streamed in (True, False):
        with socket.create_connection(address(server)) as client:
            client.sendall(sent(4000, is_streamed=is_streamed))
            while smollm2._loop.call(num_held_blocks) == 0:
                time.sleep(0.005)
        before = smollm2.metrics().num_steps
        while smollm2._loop.call(num_held_blocks):
            pass
        # The loop of the server hears of it while a step runs, and the engine between that one and the next.
        assert smollm2.metrics().num_steps - before <= 5
        wait_until_idle(server, 10)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure(
    serve_plain: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve_plain()
    held = server._server.server_state
    with socket.create_connection(address(server)) as client:
        client.sendall(sent(1)[:-1])
        while not held.tasks:
            time.sleep(0.005)
    give_up_at = time.monotonic() + 30
    while held.tasks:
        assert time.monotonic() < give_up_at
        time.sleep(0.005)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    told = httpx2.get(f"{server.url}/metrics").text
    assert 'ramet:http_requests_total{method="POST",path="/plain",status="disconnected"} 1.0' in told


@pytest.mark.parametrize("ahead", [b"x", b"y" * 30_000, b"z" * 200_000], ids=len)
@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_has_sent_more_and_leaves_is_seen_to_leave(
    serve_plain: Serve, smollm2: LLM, ahead: bytes, is_streamed: bool
) -> None:
    server = serve_plain()
    with socket.create_connection(address(server)) as client:
        client.sendall(sent(4000, is_streamed=is_streamed))
        while smollm2._loop.call(num_held_blocks) == 0:
            time.sleep(0.005)
        head = b"POST /plain HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(ahead)
        with suppress(OSError):  # too much of it is cut off
            client.sendall(head + ahead)
    before = smollm2.metrics().num_steps
    wait_until_idle(server, 20)
    assert smollm2.metrics().num_steps - before < 2000


def test_requests_sent_ahead_are_answered_in_order(serve_plain: Serve) -> None:
    with socket.create_connection(address(serve_plain()), timeout=60) as client:
        client.sendall(sent(5, is_streamed=False) + b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3)
        received = b""
        while received.count(b'{"status":"ok"}') < 3:
            received += client.recv(65536)
        assert received.index(b'"text"') < received.index(b'"status"')


def test_a_client_that_stops_reading_is_cut_off_and_costs_no_more_than_its_answer(serve_plain: Serve) -> None:
    server = serve_plain(write_timeout_s=0.5, request_timeout_s=5.0)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        client.connect(address(server))
        # A stream of many answers, in one connection: more than what the system keeps for a client that does not read.
        client.sendall(sent(1, "x " * 3000, is_streamed=False))
        client.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1500)
        give_up_at = time.monotonic() + 60
        while server._server.server_state.connections:
            assert time.monotonic() < give_up_at
            time.sleep(0.02)
    wait_until_idle(server, 10)
