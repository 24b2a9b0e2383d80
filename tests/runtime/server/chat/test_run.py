"""Runs that are left, or that fail, before the engine has them."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from typing import Any

import httpx2
import pytest

from ramet import LLM

from ..conftest import Serve

pytestmark = pytest.mark.model

FAMILIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi."},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi."}]},
    "/v1/responses": {"input": "Hi."},
    "/v1/messages": {"model": "smollm2", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]},
    "/generate": {"text": "Hi."},
}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", FAMILIES)
def test_a_client_that_leaves_while_its_prompt_is_made_is_seen_to_leave(
    serve: Serve, smollm2: LLM, monkeypatch: pytest.MonkeyPatch, path: str, is_streamed: bool
) -> None:
    server = serve()
    is_reached, is_released = threading.Event(), threading.Event()
    encode = smollm2.tokenizer.encode

    def held(*args: Any, **options: Any) -> list[int]:
        is_reached.set()
        is_released.wait(60)
        return encode(*args, **options)

    monkeypatch.setattr(smollm2.tokenizer, "encode", held)
    body = json.dumps({**FAMILIES[path], "stream": is_streamed}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    try:
        with socket.create_connection((host, int(port))) as client:
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            assert is_reached.wait(30)
            assert server.service.is_answering
        give_up_at = time.monotonic() + 30
        while server.service.is_answering:
            assert time.monotonic() < give_up_at, "the server still works for a client that is gone"
            time.sleep(0.01)
    finally:
        is_released.set()


@pytest.mark.parametrize("path", [*FAMILIES, "/v1/messages/count_tokens"])
def test_an_error_that_nobody_raised_on_purpose_is_the_servers(
    http: httpx2.Client,
    smollm2: LLM,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    """Whatever kind of error it is, the client is told its request's id, and the log says why."""

    def broken(*args: Any, **options: Any) -> list[int]:
        raise ValueError("not for the client")

    monkeypatch.setattr(smollm2.tokenizer, "encode", broken)
    with caplog.at_level(logging.ERROR):
        answer = http.post(path, json=FAMILIES.get(path) or FAMILIES["/v1/messages"])
    assert answer.status_code == 500
    request_id = answer.headers["x-request-id"]
    assert request_id in answer.json()["error"]["message"]
    assert "not for the client" not in answer.text
    assert f"request {request_id} failed: not for the client" in caplog.text
