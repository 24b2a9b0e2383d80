"""More requests than a server can answer: some are refused, at once, and all others are answered."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from .conftest import Serve

pytestmark = pytest.mark.model

NUM_TOKENS = 8


async def ask(client: httpx2.AsyncClient, idx: int) -> httpx2.Response:
    body = {"prompt": f"Number {idx}", "max_tokens": NUM_TOKENS, "stream": idx % 2 == 0}
    return await client.post("/plain", json=body)


async def ask_all(url: str, count: int) -> list[httpx2.Response]:
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        return await asyncio.gather(*(ask(client, idx) for idx in range(count)))


def test_what_is_accepted_is_answered_and_what_is_not_is_told_when_to_come_again(serve_plain: Serve) -> None:
    server = serve_plain()
    server.service.admission.max_live = 6
    answers = asyncio.run(ask_all(server.url, 60))
    accepted = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(accepted) >= 6
    assert len(refused) == 60 - len(accepted) > 0
    for answer in refused:
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.json()["error"]["code"] == "server_full"
    for answer in accepted:
        is_stream = answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.endswith("data: [DONE]\n\n") if is_stream else answer.json()["text"]
        assert "error" not in answer.text
    assert server.service.admission.num_live == 0
    assert asyncio.run(ask_all(server.url, 1))[0].status_code == 200
