"""Health is told whatever the engine does, and an engine that is not well keeps nobody waiting."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from ramet import LLM
from ramet.runtime.engine import Engine

from .conftest import Serve
from .engine_gate import EngineGate, wait_until_unhealthy

pytestmark = pytest.mark.model


def test_a_well_engine_is_healthy_and_ready(http: httpx2.Client) -> None:
    assert (http.get("/health").status_code, http.get("/ready").json()) == (200, {"ready": True})


def test_a_hung_step_is_reported_and_nobody_waits_for_it(serve_plain: Serve, gate: EngineGate) -> None:
    server = serve_plain(step_timeout_s=1.0)
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        gate.close()
        answer = wait_until_unhealthy(client)
        assert answer.status_code == 503
        assert "the engine hangs: a step has been running for" in answer.json()["reason"]
        assert client.get("/ready").status_code == 503
        refused = client.post("/plain", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_stopped")
        assert "retry-after" in refused.headers
        for _ in range(10):  # more than there are workers
            told = client.get("/metrics")
            assert told.status_code == 200
            assert "ramet:engine_up 0.0" in told.text
        gate.open()
        while client.get("/health").status_code != 200:
            time.sleep(0.01)
        assert client.post("/plain", json={"max_tokens": 2}).status_code == 200


def test_what_asks_the_engine_takes_no_worker_from_others(serve: Serve, gate: EngineGate) -> None:
    asking = (
        ("POST", "/flush_cache"),
        ("POST", "/start_profile"),
        ("GET", "/server_info"),
        ("GET", "/health_generate"),
    ) * 3
    server = serve(step_timeout_s=1.0)
    with httpx2.Client(base_url=server.url, timeout=30) as client, ThreadPoolExecutor(len(asking)) as others:
        gate.close()
        answers = [others.submit(client.request, *each) for each in asking]
        assert client.post("/tokenize", json={"prompt": "hello"}).json()["count"] > 0
        statuses = [answer.result().status_code for answer in answers]
        assert set(statuses) == {503, 409}
        assert statuses.count(409) == 2  # of three profiles
        for each in set(asking):
            refused = client.request(*each)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_stopped")
        assert client.get("/get_model_info").status_code == 200
        gate.open()
        while client.get("/health").status_code != 200:
            pass
        assert {client.request(*each).status_code for each in asking if each[1] != "/start_profile"} == {200}


def test_the_time_limit_of_a_request_holds_in_a_hung_step(serve_plain: Serve, gate: EngineGate) -> None:
    server = serve_plain(request_timeout_s=0.2)
    gate.close()
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        whole = client.post("/plain", json={})
        streamed = client.post("/plain", json={"stream": True})
    for answer in (whole, streamed):
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        assert answer.headers["x-should-retry"] == "false"  # what took too long once would again
    assert server.service.admission.num_live == 2
    gate.open()
    give_up_at = time.monotonic() + 30
    while server.service.admission.num_live:  # as soon as the engine lets go of them
        assert time.monotonic() < give_up_at


def test_a_server_over_a_hung_engine_ends_without_waiting_for_it(serve_plain: Serve, gate: EngineGate) -> None:
    server = serve_plain(step_timeout_s=0.1)
    gate.close()
    with httpx2.Client(base_url=server.url, timeout=30) as client, httpx2.Client(base_url=server.url) as watcher:
        answers: list[int] = []
        asking = threading.Thread(target=lambda: answers.append(client.post("/plain", json={}).status_code))
        asking.start()
        wait_until_unhealthy(watcher)
        server.close()
        asking.join()
    assert answers == [503]


def test_a_dead_engine_fails_what_runs_and_what_comes(serve_plain: Serve) -> None:
    def break_down(engine: Engine) -> None:
        raise AssertionError("an invariant of the engine")

    with LLM("smollm2") as llm:
        server = serve_plain(llm=llm)
        with httpx2.Client(base_url=server.url, timeout=30) as client:
            answers: list[httpx2.Response] = []
            asking = threading.Thread(target=lambda: answers.append(client.post("/plain", json={"max_tokens": 4000})))
            asking.start()
            while server.service.admission.num_live == 0:
                time.sleep(0.01)
            llm.tell(break_down)
            asking.join()
            assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (503, "engine_stopped")
            assert "invariant" not in answers[0].text
            assert "has stopped" in client.get("/health").json()["reason"]
            assert client.post("/plain", json={}).status_code == 503
            assert "ramet:engine_up 0.0" in client.get("/metrics").text
        assert server.service.admission.num_live == 0
