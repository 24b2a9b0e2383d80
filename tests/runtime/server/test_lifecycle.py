"""How a server ends: nothing it has taken on is lost, and nothing keeps it from ending."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from ramet import LLM
from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.lifecycle import DrainingServer
from ramet.runtime.server.listener import BackgroundServer, bound_socket, client_address, url_of
from ramet.runtime.server.service import EngineService

from .conftest import Serve

pytestmark = pytest.mark.model


class Reader(threading.Thread):
    """Reads a stream of the plain endpoint to its end."""

    def __init__(self, url: str, max_tokens: int) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.has_begun = threading.Event()
        self.error: Exception | None = None
        self._url, self._max_tokens = url, max_tokens

    def run(self) -> None:
        body = {"max_tokens": self._max_tokens, "stream": True}
        try:
            with httpx2.stream("POST", f"{self._url}/plain", json=body, timeout=60.0) as answer:
                for line in answer.iter_lines():
                    if line:
                        self.lines.append(line)
                        self.has_begun.set()
        except Exception as error:
            self.error = error
        self.has_begun.set()


def started_reader(server: BackgroundServer, max_tokens: int) -> Reader:
    reader = Reader(server.url, max_tokens)
    reader.start()
    assert reader.has_begun.wait(30)
    assert reader.lines, reader.error
    return reader


def ended(server: BackgroundServer) -> bool:
    try:
        httpx2.get(f"{server.url}/health")
    except httpx2.TransportError:
        return True
    return False


def wait_until_ended(server: BackgroundServer) -> None:
    give_up_at = time.monotonic() + 30
    while not ended(server):
        assert time.monotonic() < give_up_at, "the server does not end"
        time.sleep(0.02)


def test_a_drain_refuses_what_is_new_and_finishes_what_runs(serve_plain: Serve) -> None:
    server = serve_plain()
    reader = started_reader(server, 60)
    server.stop()
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        ready, health = client.get("/ready"), client.get("/health")
        refused = client.post("/plain", json={})
    assert (ready.status_code, ready.json()["reason"]) == (503, "the server is shutting down")
    assert health.status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert int(refused.headers["retry-after"]) >= 1
    reader.join()
    assert reader.error is None
    assert reader.lines[-1] == "data: [DONE]"
    assert not any("error" in line for line in reader.lines)
    wait_until_ended(server)


def test_a_second_stop_ends_streams_with_an_error(serve_plain: Serve) -> None:
    server = serve_plain()
    reader = started_reader(server, 4000)
    server.stop()
    assert not ended(server)
    server.stop()
    reader.join()
    assert reader.error is None
    assert "shutting down" in reader.lines[-2]
    assert reader.lines[-1] == "data: [DONE]"
    wait_until_ended(server)


def test_a_drain_has_an_end(serve_plain: Serve, smollm2: LLM) -> None:
    server = serve_plain(drain_timeout_s=0.2)
    reader = started_reader(server, 4000)
    server.close()
    reader.join()
    assert "shutting down" in reader.lines[-2]
    assert smollm2.generate("still there", use_tqdm=False)[0].error is None


def test_a_client_that_never_reads_does_not_keep_it_from_ending(serve_plain: Serve) -> None:
    server = serve_plain(drain_timeout_s=0.5)
    host, port = server.url.removeprefix("http://").split(":")
    body = b'{"max_tokens": 4000, "stream": true}'
    head = (
        f"POST /plain HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    )
    with socket.create_connection((host, int(port))) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        silent.sendall(f"{head}\r\n".encode() + body)
        while server.service.admission.num_live == 0:
            time.sleep(0.01)
        server.close()
    assert server.service.admission.num_live in (0, 1)  # the engine's next step lets go of it


def test_idle_and_half_open_connections_do_not_hold_it_up(serve_plain: Serve) -> None:
    server = serve_plain()
    host, port = server.url.removeprefix("http://").split(":")
    with httpx2.Client(base_url=server.url) as idle, socket.create_connection((host, int(port))) as half:
        idle.get("/health")
        half.sendall(b"GET /health HT")
        server.close()
        assert half.recv(1) == b""


def test_half_a_request_is_refused_when_the_drain_begins(serve_plain: Serve) -> None:
    server = serve_plain(drain_timeout_s=600)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as half:
        half.sendall(b"POST /plain HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
        assert httpx2.get(f"{server.url}/health").status_code == 200
        server.close()
        answer = b"".join(iter(lambda: half.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"shutting_down" in answer


def test_what_has_no_place_in_the_engine_is_finished_too_and_ready_says_why(
    serve_plain: Serve, monkeypatch: pytest.MonkeyPatch, smollm2: LLM
) -> None:
    server = serve_plain(drain_timeout_s=600)
    is_begun, is_over = threading.Event(), threading.Event()
    encode_batch = smollm2.tokenizer.encode_batch

    def slow(self: object, texts: list[str], **options: Any) -> list[list[int]]:
        is_begun.set()
        assert is_over.wait(30)
        return encode_batch(texts, **options)

    monkeypatch.setattr(type(smollm2.tokenizer), "encode_batch", slow)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx2.post, f"{server.url}/tokenize", json={"prompt": "Once"}, timeout=60)
        assert is_begun.wait(30)
        server.stop()
        with httpx2.Client(base_url=server.url, timeout=30) as client:
            readiness = [client.get("/ready").status_code for _ in range(5)]
        is_over.set()
        assert asked.result().status_code == 200
    assert readiness == [503] * 5
    wait_until_ended(server)


def test_what_is_being_made_is_cut_off_like_what_runs(
    serve_plain: Serve, monkeypatch: pytest.MonkeyPatch, smollm2: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve_plain(drain_timeout_s=0)
    is_begun, is_over = threading.Event(), threading.Event()

    def slow(self: object, text: str) -> list[int]:
        is_begun.set()
        assert is_over.wait(30)
        return [1]

    monkeypatch.setattr(type(smollm2.tokenizer), "encode", slow)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx2.post, f"{server.url}/plain", json={"max_tokens": 4000}, timeout=60)
        assert is_begun.wait(30)
        server.close()
        answer = asked.result()
    is_over.set()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert server.num_cut_off == 1
    assert server.service.admission.num_live == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def test_a_port_in_use_is_said_before_anything_is_loaded(taken: socket.socket) -> None:
    port = taken.getsockname()[1]
    with pytest.raises(InvalidConfigError, match=rf"port={port} .*in use.*another port"):
        bound_socket(ServerConfig(port=port))


def test_of_two_servers_that_start_one_is_told_at_once(smollm2: LLM) -> None:
    with bound_socket(ServerConfig(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(InvalidConfigError, match=rf"port={port} .*in use"):
            BackgroundServer(smollm2, ServerConfig(port=port))


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
def test_an_address_that_is_not_here(host: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"host='{host}' cannot be listened on .*; choose an address of this"):
        bound_socket(ServerConfig(host=host, port=0))


def test_a_port_that_is_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(bound: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", type("Socket", (socket.socket,), {"bind": bind}))
    with pytest.raises(InvalidConfigError, match=r"port=80 .*\(Permission denied\); choose a port above 1023"):
        bound_socket(ServerConfig(port=80))


def test_urls_are_those_of_a_client() -> None:
    with bound_socket(ServerConfig(host="0.0.0.0", port=0)) as everywhere:
        assert url_of(everywhere) == f"http://127.0.0.1:{everywhere.getsockname()[1]}"
    assert [client_address(host, 9) for host in ("::", "::1", "a.example")] == ["[::1]:9", "[::1]:9", "a.example:9"]


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_it_listens_on_ipv6(serve: Serve) -> None:
    try:
        server = serve(host="::1")
    except InvalidConfigError as error:
        pytest.skip(f"no IPv6 loopback: {error}")
    assert server.url.startswith("http://[::1]:")
    assert httpx2.get(f"{server.url}/health").status_code == 200


def test_a_server_counts_what_it_cut_off(smollm2: LLM) -> None:
    service = EngineService(smollm2, ServerConfig(port=0))
    server = DrainingServer(service, lambda: None)
    server.stop()
    with bound_socket(service.config) as listening:
        server.run(sockets=[listening])
    assert server.num_cut_off == 0
