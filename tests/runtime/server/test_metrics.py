"""What `/metrics` tells Prometheus."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ramet import LLM

from .conftest import Serve

pytestmark = pytest.mark.model

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(client: httpx2.Client) -> Samples:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"ramet:{name}", tuple(sorted(labels.items()))]


def test_a_request_is_counted_once_in_everything(serve_plain: Serve, smollm2: LLM) -> None:
    server = serve_plain()
    smollm2.reset_prefix_cache()
    prompt = "The same beginning, " * 10
    num_prompt_tokens = len(smollm2.tokenizer.encode(prompt))
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        before = read(client)
        for _ in range(2):
            assert client.post("/plain", json={"prompt": prompt, "max_tokens": 5}).status_code == 200
        after = read(client)
    assert value(after, "prompt_tokens_total") == 2 * num_prompt_tokens
    assert value(after, "generation_tokens_total") == 10
    assert value(after, "request_success_total", finished_reason="length") == 2
    assert value(after, "http_requests_total", method="POST", path="/plain", status="200") == 2
    cached = value(after, "cached_tokens_total")
    assert 0 < cached < num_prompt_tokens
    hits = value(after, "prefix_cache_hits_total") - value(before, "prefix_cache_hits_total")
    assert hits == cached
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "time_per_output_token"):
        assert value(after, f"{name}_seconds_count") == 2
    assert value(after, "request_prompt_tokens_sum") == 2 * num_prompt_tokens
    assert value(after, "request_generation_tokens_sum") == 10
    assert value(after, "num_requests_live") == value(after, "num_requests_running") == 0
    assert 0 < value(after, "kv_cached_tokens") <= value(after, "max_total_num_tokens")
    assert value(after, "engine_steps_total") > value(before, "engine_steps_total")
    assert value(after, "step_phase_seconds_total", phase="forward") > 0


def test_tiers_are_counted_by_name(serve: Serve, tmp_path: Path) -> None:
    body = {"prompt": "The same beginning, " * 20, "max_tokens": 1}
    with LLM("smollm2", prefix_cache_dir=tmp_path) as llm:
        server = serve(llm)
        with httpx2.Client(base_url=server.url, timeout=60) as client:
            assert client.post("/v1/completions", json=body).status_code == 200
            while not value(kept := read(client), "tier_stored_blocks_total", tier="disk"):
                pass
        assert value(kept, "tier_loaded_blocks_total", tier="disk") == 0
        assert 0 < value(kept, "tier_held_blocks", tier="disk") < value(kept, "tier_max_held_blocks", tier="disk")
        server.close()
    with LLM("smollm2", prefix_cache_dir=tmp_path) as llm:
        server = serve(llm)
        with httpx2.Client(base_url=server.url, timeout=60) as client:
            assert client.post("/v1/completions", json=body).status_code == 200
            loaded = read(client)
        assert value(loaded, "tier_hits_total", tier="disk") == 1
        num_blocks = value(loaded, "tier_loaded_blocks_total", tier="disk")
        assert value(loaded, "tier_loaded_bytes_total", tier="disk") > num_blocks > 0
        for name in ("refused", "evicted", "damaged"):
            assert value(loaded, f"tier_{name}_blocks_total", tier="disk") == 0
        server.close()


def test_paths_and_methods_of_clients_make_no_new_series(serve: Serve) -> None:
    server = serve()
    with httpx2.Client(base_url=server.url) as client:
        for idx in range(20):
            client.get(f"/nothing/{idx}")
            client.get(f"/v1/models/unknown-{idx}")
            client.request(f"METHOD{idx}", "/health")
        samples = read(client)
    series = {dict(labels)["path"] for name, labels in samples if name == "ramet:http_requests_total"}
    assert series == {"none", "/v1/models/{name:path}", "/health"}
    assert value(samples, "http_requests_total", method="GET", path="none", status="404") == 20
    assert value(samples, "http_requests_total", method="other", path="/health", status="405") == 20


def test_requests_turned_away_are_counted(serve_plain: Serve, smollm2: LLM) -> None:
    server = serve_plain()
    server.service.admission.max_live = 0  # nobody fits
    with httpx2.Client(base_url=server.url) as client:
        assert client.post("/plain", json={}).status_code == 400
        server.service.admission.max_live, server.service.admission.num_live = 1, 1
        refused = client.post("/plain", json={})
        server.service.admission.num_live = 0
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert value(read(client), "requests_rejected_total") == 1


def test_aborted_requests_are_counted(serve_plain: Serve) -> None:
    server = serve_plain()
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        with client.stream("POST", "/plain", json={"max_tokens": 4000, "stream": True}) as answer:
            lines = answer.iter_lines()  # held: the stream is closed with it
            assert next(lines)
            assert client.post("/abort_request", json={"abort_all": True}).json() == {"num_aborted": 1}
        while server.service.admission.num_live:
            client.get("/health")
        assert value(read(client), "num_aborted_requests_total") == 1


def test_tokens_are_counted_as_clients_are_told(serve: Serve) -> None:
    """Also where only the prompt was wanted, for which the engine generates a token."""
    asked = [
        ("/v1/completions", {"prompt": ["Hi there", "Ho"], "max_tokens": 0, "echo": True, "logprobs": 1}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "best_of": 3, "ignore_eos": True}),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "n": 2, "ignore_eos": True}),
    ]
    natively = {"text": ["Hi there", "Ho"], "sampling_params": [{"max_new_tokens": 0}, {"max_new_tokens": 2}]}
    num_prompt = num_generated = 0
    with httpx2.Client(base_url=serve().url, timeout=60) as client:
        for path, body in asked:
            usage = client.post(path, json=body).json()["usage"]
            num_prompt += usage["prompt_tokens"]
            num_generated += usage["completion_tokens"]
        for answer in client.post("/generate", json=natively).json():
            num_prompt += answer["meta_info"]["prompt_tokens"]
            num_generated += answer["meta_info"]["completion_tokens"]
        messages = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 0}
        usage = client.post("/v1/messages", json=messages).json()["usage"]
        num_prompt += usage["input_tokens"] + usage["cache_read_input_tokens"]
        num_generated += usage["output_tokens"]
        counted = read(client)
    assert num_generated > 3 + 2 * 3
    assert value(counted, "generation_tokens_total") == num_generated
    assert value(counted, "request_generation_tokens_sum") == num_generated
    assert value(counted, "prompt_tokens_total") == num_prompt
    assert value(counted, "time_to_first_token_seconds_count") == 3
    assert value(counted, "e2e_request_latency_seconds_count") == 7
