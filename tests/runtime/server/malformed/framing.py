"""Bytes that are no proper HTTP/1.1, or just about: what a socket of the server may be sent."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RawAttempt:
    """Bytes to send, in these pieces."""

    story: str
    pieces: tuple[bytes, ...]


_GO_ON = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
_GET = _GO_ON + b"connection: close\r\n"
_CLOSE = b"connection: close"
_CHUNKED = b"transfer-encoding: chunked"


def framing_attempts(path: str, body: bytes, rng: random.Random) -> list[RawAttempt]:
    """Each once, over a good request of an endpoint."""
    whole = {
        **_no_http(rng),
        **_odd_heads(),
        **_odd_lengths(path, body),
        **_odd_chunks(path, body),
        **_sent_ahead(path, body, rng),
    }
    return [*(RawAttempt(story, (data,)) for story, data in whole.items()), *_in_pieces(path, body)]


def _no_http(rng: random.Random) -> dict[str, bytes]:
    return {
        "nothing": b"",
        "zeros": bytes(300),
        "rubbish": rng.randbytes(500),
        "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500),
        "HTTP/2 by prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    }


def _odd_heads() -> dict[str, bytes]:
    return {
        "no version": b"GET /health\r\n\r\n",
        "HTTP/9.9": _GET.replace(b"1.1", b"9.9") + b"\r\n",
        "HTTP/1.0": b"GET /health HTTP/1.0\r\n\r\n",
        "no host": b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n",
        "two hosts": _GET + b"host: y\r\n\r\n",
        "a whole URL": b"GET http://elsewhere/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        "CONNECT": b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n\r\n",
        "asterisk": b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        "line feeds alone": b"GET /health HTTP/1.1\nhost: localhost\nconnection: close\n\n",
        "a header without a colon": _GET + b"nonsense\r\n\r\n",
        "a header with a zero": _GET + b"x: a\x00b\r\n\r\n",
        "a folded header": _GET + b"x: a\r\n b\r\n\r\n",
        "a space before the colon": _GET + b"x : a\r\n\r\n",
        "an endless line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        "an endless header": _GET + b"x: " + b"a" * 100_000 + b"\r\n\r\n",
        "ten thousand headers": _GET + b"x: y\r\n" * 10_000 + b"\r\n",
    }


def _odd_lengths(path: str, body: bytes) -> dict[str, bytes]:
    return {
        "negative length": _post(path, b"content-length: -5") + body,
        "length in words": _post(path, b"content-length: many") + body,
        "two lengths": _post(path, _length(len(body)), _length(3)) + body,
        "length beyond all": _post(path, b"content-length: 99999999999999999999") + body,
        "length and chunks": _post(path, _length(len(body)), _CHUNKED, _CLOSE) + _chunk(body) + b"0\r\n\r\n",
        "a longer length": _post(path, _length(len(body) + 50)) + body,
        "a shorter length": _post(path, _length(len(body) // 2), _CLOSE) + body,
    }


def _odd_chunks(path: str, body: bytes) -> dict[str, bytes]:
    chunk = _chunk(body)
    return {
        "a bad chunk size": _post(path, _CHUNKED) + b"xyz\r\n" + body + b"\r\n0\r\n\r\n",
        "a negative chunk": _post(path, _CHUNKED) + b"-1\r\n" + body + b"\r\n0\r\n\r\n",
        "a huge chunk size": _post(path, _CHUNKED) + b"f" * 30 + b"\r\n" + body,
        "a chunk of another length": _post(path, _CHUNKED) + b"2\r\n" + body + b"\r\n0\r\n\r\n",
        "chunks that stop": _post(path, _CHUNKED) + chunk,
        "chunks with extensions": _post(path, _CHUNKED, _CLOSE) + chunk.replace(b"\r\n", b";a=b\r\n", 1) + b"0\r\n\r\n",
        "trailers": _post(path, _CHUNKED, _CLOSE) + chunk + b"0\r\nx: y\r\n\r\n",
        "an unknown coding": _post(path, b"transfer-encoding: gzip, chunked") + chunk + b"0\r\n\r\n",
    }


def _sent_ahead(path: str, body: bytes, rng: random.Random) -> dict[str, bytes]:
    good = _post(path, _length(len(body))) + body
    last = _post(path, _length(len(body)), _CLOSE) + body
    return {
        "pipelined": good * 3 + last,
        "pipelined, then rubbish": good + rng.randbytes(200),
        "pipelined, then half": good + good[: len(good) // 2],
        "a hundred health checks": (_GO_ON + b"\r\n") * 100 + _GET + b"\r\n",
    }


def _in_pieces(path: str, body: bytes) -> list[RawAttempt]:
    length = _length(len(body))
    last = _post(path, length, _CLOSE) + body
    half = len(last) // 2
    return [
        RawAttempt("two pieces", (last[:half], last[half:])),
        RawAttempt("byte by byte", tuple(bytes([byte]) for byte in last)),
        RawAttempt("expect", (_post(path, length, _CLOSE, b"expect: 100-continue"), body)),
        RawAttempt("a half, then silence", (last[:half],)),
    ]


def _post(path: str, *lines: bytes) -> bytes:
    head = [b"POST " + path.encode() + b" HTTP/1.1", b"host: localhost", b"content-type: application/json", *lines]
    return b"\r\n".join(head) + b"\r\n\r\n"


def _length(num_bytes: int) -> bytes:
    return b"content-length: %d" % num_bytes


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)
