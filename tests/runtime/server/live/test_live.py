"""The live view: what it tells, whom, how much at most, and what it does when the engine says nothing."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx2
import pytest

from ramet import LLM, SamplingParams
from ramet.runtime.cache_namespace import CacheNamespace
from ramet.runtime.server.errors import shutting_down
from ramet.runtime.server.listener import BackgroundServer
from ramet.runtime.server.live import collector as collector_module
from ramet.runtime.server.live import observer
from ramet.runtime.server.live.wire import MAX_NAME_CHARS, MAX_TEXT_CHARS, SAMPLE_COLUMNS, STEP_COLUMNS, Names
from ramet.runtime.server.worker_pools import WorkerPools

pytestmark = pytest.mark.model

Serve = Callable[..., BackgroundServer]
Event = tuple[str, dict[str, Any]]
PATIENCE_S = 30.0


@contextmanager
def watching(url: str, key: str | None = None) -> Iterator[Iterator[Event]]:
    """The events of the live view, as they come."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with httpx2.stream("GET", f"{url}/live/events", headers=headers, timeout=PATIENCE_S) as response:
        assert response.status_code == 200, response.read()
        yield _events(response.iter_raw())


def _events(pieces: Iterator[bytes]) -> Iterator[Event]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n\n")
        for event in whole:
            head, _, data = event.partition(b"\n")
            yield head.removeprefix(b"event: ").decode(), json.loads(data.removeprefix(b"data: "))


def first(events: Iterator[Event], is_it: Callable[[str, dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    for name, data in events:
        if is_it(name, data):
            return data
        assert time.monotonic() < deadline, f"the last event was {name}: {str(data)[:500]}"
    raise AssertionError("the stream has ended")


def num_recorders(llm: LLM) -> int:
    return llm.ask_engine(lambda engine: len(engine._recorders)).result(PATIENCE_S)


def named(state: dict[str, Any], name: str) -> list[dict[str, float]]:
    return [dict(zip(state[name]["columns"], row, strict=True)) for row in state[name]["rows"]]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what lingers."""
    monkeypatch.setattr(collector_module, "LINGER_S", 0.3)
    monkeypatch.setattr(collector_module, "CACHE_PERIOD_S", 0.2)


@contextmanager
def blocked(llm: LLM) -> Iterator[None]:
    """An engine that does not come back from what it does."""
    gate = threading.Event()
    entered = threading.Event()
    llm.ask_engine(lambda engine: (entered.set(), gate.wait(PATIENCE_S)))
    assert entered.wait(PATIENCE_S)
    try:
        yield
    finally:
        gate.set()


def test_a_watcher_sees_what_a_request_does(serve: Serve, smollm2: LLM, quick: None) -> None:
    prompt = "The live view shows what an engine does while it does it. " * 4
    with watching(serve().url) as events:
        state = first(events, lambda name, data: name == "state")
        assert state["steps"]["columns"] == list(STEP_COLUMNS)
        assert state["samples"]["columns"] == list(SAMPLE_COLUMNS)
        handle = smollm2.submit(prompt, SamplingParams(max_tokens=60, ignore_eos=True), label="poem")
        busy = first(events, lambda name, data: name == "tick" and bool(data["running"]))
        (sequence,) = busy["running"]
        assert sequence["id"] == handle.request.request_id
        assert sequence["label"] == "poem"
        assert sequence["prompt_tokens"] == len(handle.request.prompt_token_ids)
        assert 0 <= sequence["generated_tokens"] <= sequence["max_tokens"] == 60
        assert busy["engine"]["status"] == "busy"
        output = handle.result(PATIENCE_S)
        done = first(events, lambda name, data: name == "tick" and data["engine"]["status"] == "idle")
        assert done["counters"]["generated_tokens"] >= state["counters"]["generated_tokens"] + 60
        assert done["running"] == []
        tree = first(
            events, lambda name, data: name == "tree" and any("live view" in run["text"] for run in data["runs"])
        )
    assert output.finished
    for run in tree["runs"]:
        assert run["parent"] is None or tree["runs"][run["parent"]]["start"] < run["start"]


def test_a_state_has_all_steps_since_the_first_look(serve: Serve, smollm2: LLM) -> None:
    url = serve().url
    httpx2.get(f"{url}/live/state").raise_for_status()
    before = smollm2.metrics()
    smollm2.generate("One, two, three,", SamplingParams(max_tokens=9, ignore_eos=True))
    after = smollm2.metrics()
    deadline = time.monotonic() + PATIENCE_S
    while len(steps := named(httpx2.get(f"{url}/live/state").json(), "steps")) < after.num_steps - before.num_steps:
        assert time.monotonic() < deadline
    assert len(steps) == after.num_steps - before.num_steps
    computed = sum(step["prompt_tokens"] + step["decode_tokens"] for step in steps)
    assert computed == after.num_computed_tokens - before.num_computed_tokens
    assert all(step["forward_ms"] > 0 for step in steps)
    assert [step["step"] for step in steps] == list(range(len(steps)))


def test_nothing_is_recorded_while_nobody_watches(serve: Serve, smollm2: LLM, quick: None) -> None:
    url = serve().url
    assert num_recorders(smollm2) == 0
    with watching(url) as events, watching(url) as others:
        next(events)
        next(others)
        assert num_recorders(smollm2) == 1
    deadline = time.monotonic() + PATIENCE_S
    while num_recorders(smollm2):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_is_sent_does_not_grow(serve: Serve, smollm2: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "MAX_RUNS", 5)
    monkeypatch.setattr(observer, "MAX_RUN_TOKENS", 8)
    monkeypatch.setattr(observer, "MAX_SEQUENCES", 3)
    for idx in range(8):
        smollm2.generate(f"{idx} is a number, " * 12, SamplingParams(max_tokens=1))
    url = serve().url
    handles = [smollm2.submit(f"{idx}", SamplingParams(max_tokens=2000, ignore_eos=True)) for idx in range(6)]
    deadline = time.monotonic() + PATIENCE_S
    while (state := httpx2.get(f"{url}/live/state").json())["num_running"] < len(handles):  # a step takes them in
        assert time.monotonic() < deadline
    for handle in handles:
        handle.abort()
    assert len(state["tree"]["runs"]) == 5
    assert state["tree"]["hidden"] + sum(run["hidden"] for run in state["tree"]["runs"]) > 0
    assert all(len(run["text"]) <= MAX_TEXT_CHARS for run in state["tree"]["runs"])
    assert len(state["running"]) == 3


@pytest.mark.parametrize("path", ["/live/state", "/live/events"])
def test_admins_only(serve: Serve, path: str) -> None:
    url = serve(api_keys=("alice=alice-key", "bob=bobs-key"), admin_api_keys=("root=roots-key",)).url
    statuses = {}
    for key in ("none", "nonsense", "alice-key", "bobs-key", "roots-key"):
        with httpx2.stream(
            "GET", url + path, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S
        ) as response:
            statuses[key] = response.status_code
    assert statuses == {"none": 401, "nonsense": 401, "alice-key": 403, "bobs-key": 403, "roots-key": 200}


def test_tenants_are_called_by_their_names(serve: Serve, smollm2: LLM, quick: None) -> None:
    running = serve(api_keys=("alice=alice-key",), admin_api_keys=("root=roots-key",))
    (namespace_id,) = [key for key, name in _tenant_names(running).items() if name == "alice"]
    namespace = CacheNamespace(namespace_id, "project")
    smollm2.generate(
        "Alice has a cache of her own, and nobody else", SamplingParams(max_tokens=1), cache_namespace=namespace
    )
    with watching(running.url, "roots-key") as events:
        state = first(events, lambda name, data: name == "state")
    assert any(run["namespace"] == "alice · project" for run in state["tree"]["runs"])
    assert namespace_id not in json.dumps(state)


def _tenant_names(running: BackgroundServer) -> dict[str, str]:
    from ramet.runtime.server.tenant import Tenants

    return Tenants(running.config).names


def test_any_namespace_has_a_short_name() -> None:
    names = Names({"0123456789abcdef": "alice"})
    assert names.of(None) == ""
    assert names.of(CacheNamespace()) == ""
    assert names.of(CacheNamespace("0123456789abcdef")) == "alice"
    assert names.of(CacheNamespace("fedcba9876543210", "s")) == "fedcba98 · s"
    assert len(names.of(CacheNamespace("0123456789abcdef", "s" * 1000))) < 2 * MAX_NAME_CHARS
    assert names.of(("any", 7)) == "('any', 7)"


def test_an_engine_that_does_not_answer_is_said_to_be_silent(serve: Serve, smollm2: LLM) -> None:
    with watching(serve().url) as events:
        before = first(events, lambda name, data: name == "state")
        with blocked(smollm2):
            silent = first(events, lambda name, data: data["engine"]["status"] == "silent")
            later = first(events, lambda name, data: data["engine"]["silent_s"] > silent["engine"]["silent_s"])
            assert later["counters"] == before["counters"]
        first(events, lambda name, data: name == "tick" and data["engine"]["status"] == "idle")


def test_a_silent_engine_is_said_to_be_so_from_the_first_look_on(serve: Serve, smollm2: LLM) -> None:
    url = serve().url
    with blocked(smollm2):
        state = httpx2.get(f"{url}/live/state", timeout=PATIENCE_S).json()
        assert state["engine"]["status"] == "silent"
        assert httpx2.get(f"{url}/v1/models").status_code == 200
    assert "counters" not in state
    assert state["tree"] == {"hidden": 0, "runs": []}


def test_an_engine_that_has_ended_is_said_to_be_stopped(serve: Serve) -> None:
    llm = LLM("smollm2", num_blocks=16, show_progress=False)
    url = serve(llm).url
    with watching(url) as events:
        next(events)
        llm.shutdown()
        first(events, lambda name, data: data["engine"]["status"] == "stopped")
    assert httpx2.get(f"{url}/live/state").json()["engine"]["status"] == "stopped"


def test_too_many_watchers_are_told_to_come_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector_module, "MAX_WATCHERS", 1)
    url = serve().url
    with watching(url) as events:
        next(events)
        refused = httpx2.get(f"{url}/live/events")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1


def test_watchers_that_come_at_once_are_no_more_than_may(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector_module, "MAX_WATCHERS", 2)
    host, port = serve().url.removeprefix("http://").split(":")
    with ExitStack() as stack:
        asking = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S)) for _ in range(40)
        ]
        for each in asking:
            each.sendall(b"GET /live/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        statuses = Counter(each.recv(12)[-3:] for each in asking)
    assert statuses == {b"200": 2, b"429": 38}


def test_workers_that_end_with_the_server_are_no_failure_of_the_view(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def call(self: WorkerPools, tenant: str, function: object) -> object:
        raise shutting_down()

    monkeypatch.setattr(WorkerPools, "call", call)
    assert httpx2.get(f"{serve().url}/live/state").json()["engine"]["status"] == "unseen"
    assert not caplog.records


def test_a_server_that_drains_ends_the_view(serve: Serve) -> None:
    running = serve()
    with watching(running.url) as events:
        next(events)
        running.service.admission.is_draining = True
        assert len(list(events)) < 10
