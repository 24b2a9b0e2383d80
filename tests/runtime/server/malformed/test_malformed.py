"""Whatever a client sends: no 5xx, no hang, and the next good request is answered as before, to the last bit."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import httpx2
import pytest

from ramet.runtime.server.listener import BackgroundServer

from ..conftest import Serve
from .framing import framing_attempts
from .mutations import Attempt, attempts
from .valid_requests import BODIES, Body, requests_of
from .wire import Reply, error_of, exchange

pytestmark = pytest.mark.model

PROBES: dict[str, Body] = {
    "/v1/completions": {"prompt": "The sea is", "max_tokens": 6, "temperature": 0, "logprobs": 3, "echo": True},
    "/generate": {
        "text": "The sea is",
        "sampling_params": {"max_new_tokens": 6, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 3,
    },
}
_VOLATILE = ("id", "created", "e2e_latency", "num_cached_tokens", "cached_tokens")


class Target:
    """A server that is sent rubbish, and asked now and then whether it is still itself."""

    def __init__(self, server: BackgroundServer) -> None:
        self.service = server.service
        self.paths = BODIES.keys() & set(httpx2.get(f"{server.url}/openapi.json").json()["paths"])
        self.probes = {path: body for path, body in PROBES.items() if path in self.paths}
        self.good = requests_of(self.paths, self.service.served_model_names[0])
        host, _, port = server.url.rpartition("//")[2].partition(":")
        self._address = (host, int(port))
        self._url = server.url
        for path, body in self.good:  # what starts at the first use, such as the compiler of grammars, has its time
            response = httpx2.post(server.url + path, json=body, timeout=30.0)
            assert (response.status_code == 200) == (path != "/v1/embeddings"), (path, response.text)
        self._first = self.probe()

    def send(self, *pieces: bytes) -> Reply:
        return exchange(self._address, pieces, self._progress)

    def probe(self) -> dict[str, Any]:
        """The answers to good requests, without what changes with the hour and the cache."""
        answers = {}
        for path, body in self.probes.items():
            response = httpx2.post(self._url + path, json=body, timeout=30.0)
            assert response.status_code == 200, response.text
            answers[path] = _without(response.json())
        return answers

    def check(self) -> None:
        """It still answers as it did at first, and holds nothing of what was sent."""
        deadline = time.monotonic() + 30
        while self.service.admission.num_live and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.service.admission.num_live == 0
        assert self.probe() == self._first

    def _progress(self) -> int:
        """Tokens, and half seconds of work, as it takes to compile a grammar on a busy machine."""
        metrics = self.service.llm.metrics()
        return metrics.num_computed_tokens + metrics.num_generated_tokens + int(2 * time.process_time())


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(item) for name, item in value.items() if name not in _VOLATILE}
    return [_without(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def target(serve: Serve) -> Target:
    return Target(serve(header_timeout_s=1.0, body_timeout_s=1.0, served_model_names=("smollm2",)))


def hit(target: Target, attempt: Attempt) -> int:
    """Send it. The status, 0 if there was none: the client left, or the connection was cut."""
    wire = attempt.on_the_wire()
    reply = target.send(wire)
    told = f"{attempt.story}: {wire[:1500]!r} got {reply.data[:600]!r}"
    assert all(status < 500 for status in reply.statuses), told
    if reply.was_left or not reply.statuses:
        return 0
    assert len(reply.statuses) == 1, told
    (status,) = reply.statuses
    if status >= 400 and attempt.method != "HEAD" and not reply.data.endswith(b"Invalid HTTP request received."):
        assert error_of(reply), told
    return status


def storm(target: Target, num_requests: int, seed: int) -> dict[int, int]:
    """How many answers had which status."""
    statuses: dict[int, int] = {}
    for number, attempt in zip(range(num_requests), attempts(target.good, random.Random(seed)), strict=False):
        status = hit(target, attempt)
        statuses[status] = statuses.get(status, 0) + 1
        if number % 50 == 49:
            target.check()
    target.check()
    return statuses


def test_malformed_requests(target: Target) -> None:
    statuses = storm(target, 300, seed=1)
    assert statuses[400] > 100
    assert statuses[200] > 20, "some mutations are harmless, and are answered"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_thousand_malformed_requests(target: Target) -> None:
    statuses = storm(target, 5000, seed=2)
    assert statuses[400] > 2000


def test_bad_framing(target: Target) -> None:
    path, body = next((path, body) for path, body in target.good if path == "/generate")
    for attempt in framing_attempts(path, json.dumps(body).encode(), random.Random(3)):
        reply = target.send(*attempt.pieces)
        allowed = {505} if attempt.story in ("HTTP/9.9", "HTTP/2 by prior knowledge") else set()
        assert all(status < 500 or status in allowed for status in reply.statuses), (attempt.story, reply.data[:600])
    target.check()


def test_mutations_are_repeatable_and_of_every_kind() -> None:
    good = requests_of(BODIES, "smollm2")
    first, again = (
        [attempt for _, attempt in zip(range(400), attempts(good, random.Random(5)), strict=False)] for _ in range(2)
    )
    assert first == again
    assert len({attempt.on_the_wire() for attempt in first}) > 350
    assert {attempt.target for attempt in first} >= set(BODIES)
