"""What a connection does with clients that are slow, many, or speak something else."""

from __future__ import annotations

import json
import socket
import time

import httpx2
import pytest

from ramet.runtime.server.listener import BackgroundServer

from .conftest import Serve

pytestmark = pytest.mark.model


def connect(server: BackgroundServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def exchange(server: BackgroundServer, sent: bytes) -> bytes:
    """Everything that comes back until the server closes."""
    with connect(server) as connection:
        connection.sendall(sent)
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


def parts(answer: bytes) -> tuple[int, dict[str, object]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def test_whoever_sends_nothing_is_cut_off_without_a_word(serve: Serve) -> None:
    assert exchange(serve(header_timeout_s=0.1), b"") == b""


def test_slow_headers_and_bodies_get_408(serve: Serve) -> None:
    server = serve(header_timeout_s=1.0, body_timeout_s=0.2)
    status, error = parts(exchange(server, b"POST /v1/mod"))
    assert (status, error["message"]) == (408, "the head of the request took more than 1 s to come")
    head = b"POST /v1/models HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n"
    status, error = parts(exchange(server, head + b"12"))
    assert status in (405, 408)  # a route that takes no POST answers without the body
    assert httpx2.get(f"{server.url}/health").status_code == 200


def test_a_slow_body_of_a_route_that_reads_it_gets_408(serve_plain: Serve) -> None:
    server = serve_plain(body_timeout_s=0.2)
    head = b"POST /plain HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n"
    status, error = parts(exchange(server, head + b"{}"))
    assert (status, error["message"]) == (408, "the body of the request took more than 0.2 s to come")
    assert server.service.admission.num_live == 0


def test_the_second_request_of_a_connection_has_its_own_time(serve: Serve) -> None:
    server = serve(header_timeout_s=1.0)
    with connect(server) as connection:
        for _ in range(2):
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(65536)
            time.sleep(0.6)  # no part of a request is on its way meanwhile
        connection.sendall(b"GET /he")
        assert connection.recv(65536).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nbroken header\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_gets_400_in_json(server: BackgroundServer, sent: bytes) -> None:
    status, error = parts(exchange(server, sent))
    assert status in (400, 405)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"a" * 70_000,
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",  # whole, and maybe in one piece
        b"GET /" + b"a" * 32_768 + b" HTTP/1.1\nhost: localhost\n\n",
        b"GET / HTTP/1.1\r\nx-big: " + b"a" * 300_000,
    ],
    ids=["endless URL", "long URL", "long URL and line feeds", "endless header"],
)
def test_long_heads_get_431(server: BackgroundServer, sent: bytes) -> None:
    status, error = parts(exchange(server, sent))
    assert status == 431
    assert error["message"] == "the head of the request has more than 32768 bytes, the limit of this server"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/" + "a" * 30_000, 404), ("PURGE" * 200, "/ready", 405)],
    ids=["path", "how"],
)
def test_refusals_repeat_little_of_what_was_asked_for(
    server: BackgroundServer, method: str, path: str, status: int
) -> None:
    answer = httpx2.request(method, server.url + path)
    assert answer.status_code == status
    assert len(answer.text) < 400


@pytest.mark.parametrize(
    ("head", "status", "said"),
    [
        (b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ntransfer-encoding: chunked", 400, "both"),
        (b"GET /health HTTP/1.1\r\nTransfer-Encoding : chunked\r\nhost: x\r\nContent-Length: 2", 400, ""),
        (b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: b\r\n c", 400, "second line"),
        (b"GET /health HTTP/1.1\nhost: x\nx-a: b\n\tc", 400, "second line"),
        (b"GET /health HTTP/9.9\r\nhost: x", 505, "HTTP/9.9 is not spoken"),
        (b"GET /health HTTP/2.0\r\nhost: x", 505, "HTTP/2.0 is not spoken"),
        (b"PRI * HTTP/2.0", 505, "HTTP/2.0 is not spoken"),
        (b"CONNECT a.example:443 HTTP/1.1\r\nhost: a.example", 405, "CONNECT is for proxies"),
    ],
)
@pytest.mark.parametrize("is_second", [False, True])
def test_a_head_that_others_may_read_otherwise_is_refused_and_the_connection_closed(
    server: BackgroundServer, head: bytes, status: int, said: str, is_second: bool
) -> None:
    first = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" if is_second else b""
    body = b"0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: localhost\r\n\r\n"
    received = exchange(server, first + head + b"\r\n\r\n" + body)
    answers = [answer for answer in received.split(b"HTTP/1.1 ") if answer]
    assert [answer[:3] for answer in answers] == [b"200"] * is_second + [b"%d" % status]
    assert said.encode() in answers[-1]
    assert b"connection: close" in answers[-1].lower()


def test_refusals_before_the_application_have_an_id(server: BackgroundServer) -> None:
    head = exchange(server, b"nonsense\r\n\r\n").partition(b"\r\n\r\n")[0]
    ids = dict(line.split(b": ") for line in head.split(b"\r\n")[1:])
    assert ids[b"x-request-id"] == ids[b"request-id"] != b""


def test_nothing_is_redirected(server: BackgroundServer) -> None:
    for path in ("/metrics/", "/health/", "/v1/models/", "//metrics", "/docs/"):
        answer = httpx2.get(server.url + path)
        assert (answer.status_code, "location" in answer.headers) == (404, False), path


def test_too_many_connections_get_503_but_health_is_answered(serve: Serve) -> None:
    server = serve(max_connections=2)
    with connect(server) as first, connect(server) as second:
        for held in (first, second):
            held.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"200 OK" in held.recv(65536)
        answer = httpx2.get(f"{server.url}/v1/models")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_connections")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["x-request-id"] == answer.headers["request-id"] != ""
        assert httpx2.get(f"{server.url}/health").status_code == 200
    give_up_at = time.monotonic() + 10
    while httpx2.get(f"{server.url}/v1/models").status_code != 200:
        assert time.monotonic() < give_up_at
