"""One profile at a time, which nothing leaves behind in the engine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from ramet import LLM

from .conftest import Serve
from .engine_gate import EngineGate

pytestmark = pytest.mark.model


def num_recorders(llm: LLM) -> int:
    return llm.ask_engine(lambda engine: len(engine._recorders)).result(30)


@pytest.fixture(autouse=True)
def nothing_is_left(smollm2: LLM) -> Iterator[None]:
    before = num_recorders(smollm2)
    yield
    assert num_recorders(smollm2) == before


def test_calls_that_cross_are_told_so(serve: Serve, gate: EngineGate) -> None:
    with httpx2.Client(base_url=serve().url, timeout=60) as http, ThreadPoolExecutor() as others:
        paths = ("/start_profile", "/stop_profile")
        for path, other, crossing in ((*paths, "being started"), (*paths[::-1], "being ended")):
            gate.close()
            first = others.submit(http.post, path)
            while crossing not in (refused := http.post(other)).text:
                assert refused.status_code == 409
            assert {http.post(path).status_code, http.post(other).status_code} == {409}
            assert not first.done()
            gate.open()
            assert first.result().status_code == 200
        assert "POST /start_profile begins one" in http.post("/stop_profile").text


def test_starts_and_stops_at_random_leave_nothing(serve: Serve) -> None:
    server = serve()
    with ThreadPoolExecutor(8) as clients:
        paths = ["/start_profile", "/stop_profile"] * 8
        answers = list(clients.map(lambda path: httpx2.post(f"{server.url}{path}", timeout=60), paths))
    assert {answer.status_code for answer in answers} <= {200, 409}
    httpx2.post(f"{server.url}/stop_profile", timeout=60)


def wait_until_well(http: httpx2.Client) -> None:
    while http.get("/health").status_code != 200:
        pass


def test_a_hung_engine_keeps_the_profile_and_starts_none(serve: Serve, gate: EngineGate) -> None:
    with httpx2.Client(base_url=serve(step_timeout_s=0.2).url, timeout=60) as http:
        gate.close()
        assert http.post("/start_profile").status_code == 503
        gate.open()
        wait_until_well(http)
        assert http.post("/start_profile").status_code == 200
        gate.close()
        assert http.post("/stop_profile").status_code == 503
        gate.open()
        wait_until_well(http)
        assert http.post("/stop_profile").status_code == 200


def test_a_profile_that_nobody_ends_ends_with_the_server(serve: Serve) -> None:
    server = serve()
    assert httpx2.post(f"{server.url}/start_profile", timeout=60).status_code == 200
    server.close()
