"""Bytes that are no proper HTTP/1.1, or just about: what a socket of the server may be sent."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RawAttempt:
    """Bytes to send, in these pieces."""

    story: str
    pieces: tuple[bytes, ...]


def _post(path: str, *lines: bytes) -> bytes:
    head = [b"POST " + path.encode() + b" HTTP/1.1", b"host: localhost", b"content-type: application/json", *lines]
    return b"\r\n".join(head) + b"\r\n\r\n"


def framing_attempts(path: str, body: bytes, rng: random.Random) -> list[RawAttempt]:
    """Each once, over a good request of an endpoint."""
    length = b"content-length: %d" % len(body)
    chunked = b"transfer-encoding: chunked"
    chunk = b"%x\r\n%s\r\n" % (len(body), body)
    close = b"connection: close"
    good = _post(path, length) + body
    last = _post(path, length, close) + body
    go_on = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
    get = go_on + b"connection: close\r\n"
    whole = {
        "nothing": b"",
        "zeros": bytes(300),
        "rubbish": rng.randbytes(500),
        "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500),
        "HTTP/2 by prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        "no version": b"GET /health\r\n\r\n",
        "HTTP/9.9": get.replace(b"1.1", b"9.9") + b"\r\n",
        "HTTP/1.0": b"GET /health HTTP/1.0\r\n\r\n",
        "no host": b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n",
        "two hosts": get + b"host: y\r\n\r\n",
        "a whole URL": b"GET http://elsewhere/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        "CONNECT": b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n\r\n",
        "asterisk": b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        "line feeds alone": b"GET /health HTTP/1.1\nhost: localhost\nconnection: close\n\n",
        "a header without a colon": get + b"nonsense\r\n\r\n",
        "a header with a zero": get + b"x: a\x00b\r\n\r\n",
        "a folded header": get + b"x: a\r\n b\r\n\r\n",
        "a space before the colon": get + b"x : a\r\n\r\n",
        "an endless line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        "an endless header": get + b"x: " + b"a" * 100_000 + b"\r\n\r\n",
        "ten thousand headers": get + b"x: y\r\n" * 10_000 + b"\r\n",
        "negative length": _post(path, b"content-length: -5") + body,
        "length in words": _post(path, b"content-length: many") + body,
        "two lengths": _post(path, length, b"content-length: 3") + body,
        "length beyond all": _post(path, b"content-length: 99999999999999999999") + body,
        "length and chunks": _post(path, length, chunked, close) + chunk + b"0\r\n\r\n",
        "a longer length": _post(path, b"content-length: %d" % (len(body) + 50)) + body,
        "a shorter length": _post(path, b"content-length: %d" % (len(body) // 2), close) + body,
        "a bad chunk size": _post(path, chunked) + b"xyz\r\n" + body + b"\r\n0\r\n\r\n",
        "a negative chunk": _post(path, chunked) + b"-1\r\n" + body + b"\r\n0\r\n\r\n",
        "a huge chunk size": _post(path, chunked) + b"f" * 30 + b"\r\n" + body,
        "a chunk of another length": _post(path, chunked) + b"2\r\n" + body + b"\r\n0\r\n\r\n",
        "chunks that stop": _post(path, chunked) + chunk,
        "chunks with extensions": _post(path, chunked, close) + chunk.replace(b"\r\n", b";a=b\r\n", 1) + b"0\r\n\r\n",
        "trailers": _post(path, chunked, close) + chunk + b"0\r\nx: y\r\n\r\n",
        "an unknown coding": _post(path, b"transfer-encoding: gzip, chunked") + chunk + b"0\r\n\r\n",
        "pipelined": good * 3 + last,
        "pipelined, then rubbish": good + rng.randbytes(200),
        "pipelined, then half": good + good[: len(good) // 2],
        "a hundred health checks": (go_on + b"\r\n") * 100 + get + b"\r\n",
    }
    found = [RawAttempt(story, (data,)) for story, data in whole.items()]
    half = len(last) // 2
    found += [
        RawAttempt("two pieces", (last[:half], last[half:])),
        RawAttempt("byte by byte", tuple(bytes([byte]) for byte in last)),
        RawAttempt("expect", (_post(path, length, close, b"expect: 100-continue"), body)),
        RawAttempt("a half, then silence", (good[:half],)),
    ]
    return found
