"""The client of `benchmarks.server`: streams of `/v1/completions`, with as little work as a client can have."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time

from .server_process import Prompt

PROMPT_LEN = 64
FIRST_TOKEN_ID, LAST_TOKEN_ID = 1000, 40_000


class Client(asyncio.Protocol):
    """One request on a connection of its own. Reads no JSON: events are counted.

    Attributes:
        ended: done once the server has closed the connection, or the answer is whole.
        first_at, last_at: when bytes of the body came, on perf_counter.
        body: what came, head and all.
    """

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.began_at = self.first_at = self.last_at = 0.0
        self.pieces: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.began_at = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.last_at = time.perf_counter()
        if not self.first_at and b"data: " in data:
            self.first_at = self.last_at
        self.pieces.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def answer(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def status(self) -> int:
        return int(self.answer[9:12] or 0)

    @property
    def num_cached(self) -> int:
        found = re.search(rb'"cached_tokens":(\d+)', self.answer)
        assert found is not None, self.answer
        return int(found[1])


def completion(prompt: Prompt, max_tokens: int, *, key: str = "none", cache_salt: str | None = None) -> bytes:
    body: dict[str, object] = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}, "cache_salt": cache_salt}
    text = json.dumps(body).encode()
    head = f"authorization: Bearer {key}\r\nconnection: close\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(text)}\r\n\r\n"
    return b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n" + head.encode() + text


async def send(address: tuple[str, int], request: bytes) -> Client:
    """To the end of its answer."""
    _, client = await asyncio.get_running_loop().create_connection(lambda: Client(request), *address)
    await client.ended
    return client


async def send_all(address: tuple[str, int], requests: list[bytes]) -> list[Client]:
    return await asyncio.gather(*(send(address, request) for request in requests))


def prompts_of(seed: object, count: int, prompt_len: int = PROMPT_LEN) -> list[Prompt]:
    source = random.Random(str(seed))
    return [[source.randrange(FIRST_TOKEN_ID, LAST_TOKEN_ID) for _ in range(prompt_len)] for _ in range(count)]
