"""`/generate` answers as the offline engine does, whole and streamed, and refuses what it cannot do by name."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from ramet import LLM, Engine
from ramet.runtime.outputs import RequestOutput
from ramet.runtime.server.listener import BackgroundServer

from ..conftest import Serve
from ..engine_gate import EngineGate

pytestmark = pytest.mark.model

GREEDY = {"max_new_tokens": 8, "temperature": 0.0}
PROMPT = "The capital of France is"


def ask(http: httpx2.Client, expected: int = 200, **body: Any) -> Any:
    answer = http.post("/generate", json=body)
    assert answer.status_code == expected, answer.text
    return answer.json()


def events(http: httpx2.Client, **body: Any) -> Iterator[dict[str, Any]]:
    with http.stream("POST", "/generate", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        yield json.loads(line.removeprefix("data: "))


def without_times(answer: Any) -> Any:
    """An answer as it is whenever it is given, with the cache in whatever state."""
    if isinstance(answer, list):
        return [without_times(item) for item in answer]
    dropped = ("id", "e2e_latency", "cached_tokens")
    meta = {name: value for name, value in answer["meta_info"].items() if name not in dropped}
    return {"text": answer["text"], "output_ids": answer["output_ids"], "meta_info": meta}


@pytest.mark.parametrize(
    "body",
    [
        {"text": PROMPT},
        {"text": [PROMPT, "One, two,"], "sampling_params": [GREEDY, {**GREEDY, "stop": ["five"]}]},
        {"input_ids": [504, 3575, 282]},
        {"input_ids": [[504, 3575, 282], [504]]},
        {"text": PROMPT, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": 0},
        {"text": [PROMPT], "return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True},
        {"text": "Yes or no? ", "sampling_params": {**GREEDY, "regex": "(yes|no)"}},
        {"text": PROMPT, "sampling_params": {**GREEDY, "n": 2}},
    ],
)
def test_answers_are_the_offline_engines(http: httpx2.Client, smollm2: LLM, body: dict[str, Any]) -> None:
    body = {"sampling_params": GREEDY, **body}
    arguments = {"prompt" if name == "text" else name: value for name, value in body.items()}
    offline = json.loads(json.dumps(Engine(smollm2).generate(**arguments)))
    assert without_times(ask(http, **body)) == without_times(offline)


def test_a_stream_is_cumulative_and_ends_with_the_whole_answer(http: httpx2.Client) -> None:
    body = {"text": PROMPT, "sampling_params": GREEDY, "return_logprob": True}
    whole = ask(http, **body)
    streamed = list(events(http, **body))
    assert len(streamed) > 2
    assert all(later["text"].startswith(sooner["text"]) for sooner, later in itertools.pairwise(streamed))
    assert [event["meta_info"]["completion_tokens"] for event in streamed[:3]] == [1, 2, 3]
    assert without_times(streamed[-1]) == without_times(whole)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_text_that_its_constraint_has_ended_has_matched_nothing(
    http: httpx2.Client, smollm2: LLM, is_streamed: bool
) -> None:
    """No token of its own has ended it; one that the model chose to end with, or was told to, is named."""

    def end(**params: Any) -> tuple[Any, list[int]]:
        body = {"text": PROMPT, "sampling_params": {**GREEDY, **params}}
        answer = list(events(http, **body))[-1] if is_streamed else ask(http, **body)
        return answer["meta_info"]["finish_reason"], answer["output_ids"]

    reason, ids = end(regex=" [A-Z][a-z]{4}")
    assert reason == {"type": "stop", "matched": None}
    assert ids[-1] not in smollm2.tokenizer.eos_token_ids
    reason, ids = end(stop_token_ids=[ids[-1]])
    assert reason == {"type": "stop", "matched": ids[-1]}
    reason, ids = end(logit_bias={str(min(smollm2.tokenizer.eos_token_ids)): 100})
    assert reason == {"type": "stop", "matched": ids[-1]}
    assert ids[-1] in smollm2.tokenizer.eos_token_ids


def test_a_list_is_streamed_with_indices(http: httpx2.Client) -> None:
    body: dict[str, Any] = {"text": [PROMPT, "One, two,"], "sampling_params": GREEDY}
    last = {event["index"]: event for event in events(http, **body)}
    assert [without_times(last[idx]) for idx in (0, 1)] == without_times(ask(http, **body))


def test_clients_name_their_requests(http: httpx2.Client) -> None:
    assert ask(http, text=PROMPT, sampling_params=GREEDY, rid="mine")["meta_info"]["id"] == "mine"
    two = [PROMPT, PROMPT]
    assert [each["meta_info"]["id"] for each in ask(http, text=two, sampling_params=GREEDY, rid="m")] == ["m_0", "m_1"]
    named = ask(http, text=two, sampling_params=GREEDY, rid=["a", "b"])
    assert [each["meta_info"]["id"] for each in named] == ["a", "b"]
    assert [event["meta_info"]["id"] for event in events(http, text=PROMPT, sampling_params=GREEDY, rid="s")][-1] == "s"


def test_a_salt_is_a_cache_of_its_own(http: httpx2.Client) -> None:
    def num_cached(**fields: Any) -> int:
        return int(ask(http, text=PROMPT * 20, sampling_params=GREEDY, **fields)["meta_info"]["cached_tokens"])

    assert num_cached(cache_salt="first") == 0
    assert num_cached(extra_key="first") > 0
    assert num_cached(extra_key="second") == 0


def test_a_constraint_is_healed_if_asked_for(http: httpx2.Client) -> None:
    """`"ye` alone could only go on with the rest of the letters; a token may span the boundary."""
    body = {"text": 'Is it? Answer: "ye', "sampling_params": {**GREEDY, "regex": "s|p"}}
    healed = ask(http, **body, num_healable_chars=2)
    assert "num_healed_tokens" not in ask(http, **body, num_healable_chars=1)["meta_info"]
    plain = ask(http, **body)
    assert "num_healed_tokens" not in plain["meta_info"]
    assert (healed["meta_info"]["num_healed_tokens"], healed["meta_info"]["healed_text"]) == (1, "ye")
    assert healed["meta_info"]["prompt_tokens"] == plain["meta_info"]["prompt_tokens"] - 1
    assert healed["text"] in ("s", "p")


def test_a_prompt_that_is_only_scored_has_its_own_logprobs(http: httpx2.Client) -> None:
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
    unsaid, said, outputs = (
        ask(http, **body, **start)["meta_info"]["input_token_logprobs"]
        for start in ({}, {"logprob_start_len": 0}, {"logprob_start_len": -1})
    )
    assert unsaid == said
    assert unsaid[0][0] is None
    assert len(unsaid) == 5
    assert outputs == []


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "text or input_ids"),
        ({"text": PROMPT, "input_ids": [1]}, "text or input_ids"),
        ({"text": 3}, "text=3"),
        ({"text": []}, "text=[]"),
        ({"text": ["a", 1]}, "text="),
        ({"text": ""}, "empty"),
        ({"text": ["a", ""]}, "prompt 1"),
        ({"text": "\ud800"}, "surrogate"),
        ({"input_ids": []}, "input_ids=[]"),
        ({"input_ids": [10**9]}, "1000000000"),
        ({"input_ids": [10**30]}, "1000000"),
        ({"input_ids": [-1]}, "-1"),
        ({"input_ids": ["1"]}, "1"),
        ({"input_ids": [[1], 2]}, "2"),
        ({"input_ids": [1, [2]]}, "2"),
        ({"input_ids": [True]}, "True"),
        ({"input_ids": [1, "2"], "num_healable_chars": 9}, "'2'"),
        ({"input_ids": [1, 10**30], "num_healable_chars": 9}, "1000000"),
        ({"text": PROMPT, "sampling_params": 3}, "sampling_params"),
        ({"text": PROMPT, "sampling_params": [GREEDY, GREEDY]}, "sampling_params has 2"),
        ({"text": PROMPT, "sampling_params": {"temperature": "hot"}}, "temperature"),
        ({"text": PROMPT, "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": PROMPT, "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
        ({"text": PROMPT, "sampling_params": {"max_new_token": 3}}, "max_new_tokens"),
        ({"text": PROMPT, "sampling_params": {"n": 129}}, "n=129"),
        ({"text": PROMPT, "sampling_params": {"n": 10**30}}, "n="),
        ({"text": PROMPT, "sampling_params": {"n": -5}}, "n=-5"),
        ({"text": PROMPT, "sampling_params": {"n": "many"}}, "n='many'"),
        ({"text": PROMPT, "sampling_params": {"stop": [""]}}, "stop"),
        ({"text": PROMPT, "sampling_params": {"regex": "("}}, "regex"),
        ({"text": PROMPT, "return_logprob": "yes"}, "return_logprob"),
        ({"text": PROMPT, "return_logprob": True, "logprob_start_len": 99}, "logprob_start_len"),
        ({"text": PROMPT, "return_logprob": True, "top_logprobs_num": 10**6}, "top_logprobs_num"),
        ({"text": PROMPT, "stream": 1}, "stream=1"),
        ({"text": PROMPT, "priority": "high"}, "priority"),
        ({"text": PROMPT, "cache_salt": ""}, "cache_salt"),
        ({"text": PROMPT, "cache_salt": 3}, "cache_salt"),
        ({"text": PROMPT, "cache_salt": "a", "extra_key": "b"}, "extra_key"),
        ({"text": PROMPT, "rid": 3}, "rid"),
        ({"text": PROMPT, "rid": "x" * 300}, "rid"),
        ({"text": [PROMPT, PROMPT], "rid": ["a", "a"]}, "rid"),
        ({"text": PROMPT, "num_healable_chars": -1}, "num_healable_chars"),
        ({"text": PROMPT, "num_healable_chars": 99}, "num_healable_chars"),
        ({"text": PROMPT, "image_data": "x.png"}, "image_data"),
        ({"text": PROMPT, "lora_path": "x"}, "lora_path"),
        ({"text": "word " * 20000}, "tokens"),
    ],
)
def test_what_is_wrong_is_named(http: httpx2.Client, body: dict[str, Any], named: str) -> None:
    for is_streamed in (False, True):
        content = json.dumps({"stream": is_streamed, **body})
        answer = http.post("/generate", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 400, answer.text
        assert named in answer.json()["error"]["message"]


def test_unknown_fields_play_no_part(http: httpx2.Client) -> None:
    body = {"text": PROMPT, "sampling_params": GREEDY}
    plain = ask(http, **body)
    others = {"no_such_field": {"a": 1}, "return_bytes": False, "image_data": None, "return_hidden_states": False}
    assert without_times(ask(http, **body, **others)) == without_times(plain)


def test_prompts_have_a_limit(serve: Serve) -> None:
    server = serve(max_prompts=3, max_n=2)
    with httpx2.Client(base_url=server.url, timeout=60.0) as http:
        assert "4 prompts" in ask(http, 400, text=["a"] * 4)["error"]["message"]
        assert "4 prompts" in ask(http, 400, input_ids=[[1]] * 4)["error"]["message"]
        assert "best_of=3" in ask(http, 400, text="a", sampling_params={"best_of": 3})["error"]["message"]
        assert len(ask(http, text=["a"] * 3, sampling_params={"max_new_tokens": 1})) == 3


def wait_until_empty(server: BackgroundServer) -> None:
    deadline = time.monotonic() + 60
    while server.service.admission.num_live and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.service.admission.num_live == 0


LONG = {"max_new_tokens": 4000, "ignore_eos": True, "temperature": 0.0}


def test_aborting_is_by_name_and_only_of_ones_own(serve: Serve) -> None:
    server = serve(api_keys=("alice=alice-key", "bob=bobs-key"))
    alice, bob = (
        httpx2.Client(base_url=server.url, timeout=60.0, headers={"x-api-key": key})
        for key in ("alice-key", "bobs-key")
    )
    found: list[Any] = []
    body = {"text": [PROMPT, PROMPT], "sampling_params": [GREEDY, LONG], "rid": ["short", "long"]}
    with alice, bob:
        thread = threading.Thread(target=lambda: found.append(ask(alice, **body)))
        thread.start()
        while not server.service.admission.num_live:
            time.sleep(0.01)
        assert "in use" in ask(alice, 409, text=PROMPT, rid="long")["error"]["message"]
        assert bob.post("/abort_request", json={"rid": "long"}).json() == {"num_aborted": 0}
        assert bob.post("/abort_request", json={"abort_all": True}).json() == {"num_aborted": 0}
        assert ask(bob, text=PROMPT, sampling_params=GREEDY, rid="long")["meta_info"]["id"] == "long"
        assert thread.is_alive()
        assert alice.post("/abort_request", json={"rid": "long"}).json() == {"num_aborted": 1}
        thread.join(30)
    short, long = found[0]
    assert short["meta_info"]["finish_reason"]["type"] == "length"
    assert long["meta_info"]["finish_reason"]["type"] == "abort"
    wait_until_empty(server)


def test_abort_all_takes_those_without_names_too(serve: Serve) -> None:
    server = serve()
    with httpx2.Client(base_url=server.url, timeout=60.0) as http:
        streamed: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: streamed.extend(events(http, text=PROMPT, sampling_params=LONG)))
        thread.start()
        while not server.service.admission.num_live:
            time.sleep(0.01)
        assert http.post("/abort_request", json={"abort_all": True}).json() == {"num_aborted": 1}
        thread.join(30)
        assert streamed[-1]["meta_info"]["finish_reason"]["type"] == "abort"
        for wrong in ({}, {"rid": ""}, {"rid": 3}, {"abort_all": "yes"}):
            assert http.post("/abort_request", json=wrong).status_code == 400
    wait_until_empty(server)


@pytest.mark.parametrize("num_samples", [1, 2])
def test_what_is_aborted_keeps_what_it_had_said(serve: Serve, num_samples: int) -> None:
    """Whole and streamed: a stream's text never gets shorter."""
    server = serve()
    body = {"text": PROMPT, "sampling_params": {**LONG, "n": num_samples}, "return_logprob": True}
    wholes: list[Any] = []
    with httpx2.Client(base_url=server.url, timeout=60.0) as http, httpx2.Client(base_url=server.url) as other:
        asking = threading.Thread(target=lambda: wholes.append(ask(other, **body, rid="whole")))
        asking.start()
        said: dict[int, dict[str, Any]] = {}
        with http.stream("POST", "/generate", json={**body, "rid": "streamed", "stream": True}) as answer:
            for line in answer.iter_lines():
                if not line or line == "data: [DONE]":
                    continue
                now = json.loads(line.removeprefix("data: "))
                before = said.get(now["index"], {"text": "", "output_ids": []})
                assert now["text"].startswith(before["text"])
                assert now["output_ids"][: len(before["output_ids"])] == before["output_ids"]
                said[now["index"]] = now
                if all(len(said.get(idx, before)["output_ids"]) > 4 for idx in range(num_samples)):
                    other_ids = {"rid": "streamed"}
                    httpx2.post(f"{server.url}/abort_request", json=other_ids).raise_for_status()
        httpx2.post(f"{server.url}/abort_request", json={"rid": "whole"}).raise_for_status()
        asking.join(30)
    whole = wholes[0] if num_samples > 1 else wholes
    for each in [*said.values(), *whole]:
        assert each["text"]
        meta = each["meta_info"]
        assert meta["finish_reason"]["type"] == "abort"
        assert meta["completion_tokens"] == len(each["output_ids"]) == len(meta["output_token_logprobs"]) > 4
    wait_until_empty(server)


def test_a_name_is_free_once_its_request_is_answered_even_if_the_engine_has_not_let_go(
    serve: Serve, gate: EngineGate
) -> None:
    server = serve(request_timeout_s=0.2)
    gate.close()
    with httpx2.Client(base_url=server.url, timeout=30) as http:
        for _ in range(3):
            assert http.post("/generate", json={"text": PROMPT, "rid": "a"}).status_code == 504
    gate.open()
    wait_until_empty(server)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_leaving_cancels(serve: Serve, smollm2: LLM, is_streamed: bool) -> None:
    server = serve()
    ended: list[RequestOutput] = []
    server.service.finished.append(lambda _, output: ended.append(output))
    content = json.dumps({"text": [PROMPT] * 3, "sampling_params": LONG, "stream": is_streamed}).encode()
    head = b"POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    host, _, port = server.url.removeprefix("http://").partition(":")
    num_steps = smollm2.metrics().num_steps
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head % len(content) + content)
        while smollm2.metrics().num_steps == num_steps:
            time.sleep(0.01)
    wait_until_empty(server)
    assert [sample.finish_reason for output in ended for sample in output.outputs] == ["abort"] * 3


def test_the_time_limit_ends_it(serve: Serve, gate: EngineGate) -> None:
    server = serve(request_timeout_s=0.3)
    with httpx2.Client(base_url=server.url, timeout=60.0) as http:
        gate.close()  # so that the limit comes before the first token
        for is_streamed in (False, True):
            found = ask(http, 504, text=[PROMPT] * 2, sampling_params=LONG, stream=is_streamed)
            assert found["error"]["code"] == "timeout"
        gate.open()
    wait_until_empty(server)


def test_the_time_limit_ends_a_stream_that_has_begun(serve: Serve) -> None:
    service = (server := serve()).service
    body = {"text": PROMPT, "sampling_params": LONG, "stream": True}
    with httpx2.stream("POST", f"{server.url}/generate", json=body, timeout=60.0) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        next(lines)
        (live,) = service._running
        assert service._bridge is not None
        service._bridge.post(live._expire)  # as its timer does
        *_, last, done = (line for line in lines if line)
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
    assert done == "data: [DONE]"
    wait_until_empty(server)
