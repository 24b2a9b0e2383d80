"""sglang-router, unmodified, before two servers: what it forwards, where prefixes go, a worker's death."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from .conftest import Client
from .processes import Process, ramet_server, sglang_router

MESSAGES = [{"role": "user", "content": "Say hello."}]
PREFIXES = ("A tale of a fox. " * 12, "The rules of chess. " * 12)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A router before workers."""

    router: Process
    workers: list[Process]
    http: httpx2.Client

    def generate(self, text: str) -> dict[str, Any]:
        params = {"max_new_tokens": 4, "temperature": 0}
        response = self.http.post("/generate", json={"text": text, "sampling_params": params})
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with ExitStack() as stack:
        workers = [stack.enter_context(ramet_server(folder, name)) for name in "ab"]
        options = ("--health-check-interval-secs", "1", "--health-failure-threshold", "2")
        router = stack.enter_context(sglang_router(folder, [worker.url for worker in workers], *options))
        yield Fleet(router, workers, stack.enter_context(httpx2.Client(base_url=router.url, timeout=30.0)))


@pytest.fixture(autouse=True)
def _installed(client: Client) -> None:
    client("sglang_router")


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_every_endpoint_it_forwards_whole_and_streamed(fleet: Fleet) -> None:
    assert len(fleet.http.get("/workers").json()["workers"]) == 2
    generate: dict[str, Any] = {"text": "One two", "sampling_params": {"max_new_tokens": 5, "temperature": 0}}
    whole = fleet.http.post("/generate", json=generate).json()
    assert events(fleet.http.post("/generate", json=generate | {"stream": True}))[-1]["text"] == whole["text"]

    completion = {"model": "smollm2", "prompt": "One two", "max_tokens": 5, "temperature": 0}
    text = fleet.http.post("/v1/completions", json=completion).json()["choices"][0]["text"]
    pieces = events(fleet.http.post("/v1/completions", json=completion | {"stream": True}))
    assert text == whole["text"]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == text

    chat = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 5, "temperature": 0}
    text = fleet.http.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]["content"]
    pieces = events(fleet.http.post("/v1/chat/completions", json=chat | {"stream": True}))
    assert "".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces) == text


def test_requests_with_the_same_prefix_meet_it_in_the_cache(fleet: Fleet) -> None:
    num_cached: dict[str, list[float]] = {prefix: [] for prefix in PREFIXES}
    for number in range(4):
        for prefix in PREFIXES:
            meta = fleet.generate(f"{prefix}Number {number}:")["meta_info"]
            num_cached[prefix].append(meta["cached_tokens"] / meta["prompt_tokens"])
    for shares in num_cached.values():
        assert all(share > 0.9 for share in shares[1:]), num_cached


def test_the_probe_for_http2_does_no_harm(fleet: Fleet) -> None:
    """The router tries HTTP/2 by prior knowledge first, which HTTP/1.1 has no word for."""
    for worker in fleet.workers:
        assert "Traceback" not in worker.printed()
        assert httpx2.get(f"{worker.url}/health").status_code == 200


def test_a_worker_that_dies_is_left_out(fleet: Fleet) -> None:
    """What was sent to it may fail, as the router says; what comes after finds the other, and the same answer."""
    text = f"{PREFIXES[0]}In the end"
    expected = fleet.generate(text)["text"]
    body = {"text": text, "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    busiest = max(fleet.workers, key=_num_answered)
    busiest.kill()
    statuses = []
    deadline = time.monotonic() + 30
    while statuses[-3:] != [200, 200, 200]:
        assert time.monotonic() < deadline, statuses
        response = fleet.http.post("/generate", json=body)
        statuses.append(response.status_code)
        if response.status_code == 200:
            assert response.json()["text"] == expected
    print("statuses after a worker was killed:", statuses)
    assert all(status == 200 or status >= 500 for status in statuses)


def _num_answered(worker: Process) -> float:
    lines = httpx2.get(f"{worker.url}/metrics").text.splitlines()
    assert any(line.startswith("ramet:prompt_tokens_total") for line in lines)
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("ramet:prompt_tokens_total"))
