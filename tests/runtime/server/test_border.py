"""What every request passes before a route sees it."""

from __future__ import annotations

import logging

import httpx2
import pytest

from ramet.runtime.errors import InvalidConfigError
from ramet.runtime.server.config import ServerConfig

from .conftest import Serve

pytestmark = pytest.mark.model


def test_models_are_listed(http: httpx2.Client) -> None:
    answer = http.get("/v1/models")
    assert answer.status_code == 200
    assert [model["id"] for model in answer.json()["data"]] == ["smollm2"]
    assert answer.headers["x-request-id"].startswith("req-")
    assert answer.headers.get_list("request-id") == [answer.headers["x-request-id"]]


def test_an_unknown_path_is_a_json_error(http: httpx2.Client) -> None:
    answer = http.get("/nothing")
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "there is no /nothing here")


def test_keys_are_asked_for_and_admin_paths_need_an_admin(serve: Serve) -> None:
    server = serve(api_keys=("alice=alice-key", "bob=bobs-key"), admin_api_keys=("boss-key",))
    with httpx2.Client(base_url=server.url) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 401
        for headers in ({"authorization": "bearer alice-key"}, {"x-api-key": "bobs-key"}):
            assert client.get("/v1/models", headers=headers).status_code == 200
            assert client.get("/metrics", headers=headers).status_code == 403
        assert client.get("/metrics", headers={"x-api-key": "boss-key"}).status_code != 403


def test_a_refused_request_is_told_of_by_its_route_and_its_tenant(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    keys = ("alice=alice-key", "bob=bobs-key")
    server = serve(api_keys=keys, admin_api_keys=("boss-key",), log_requests=True, max_body_bytes=100)
    alice, boss = {"x-api-key": "alice-key"}, {"x-api-key": "boss-key"}
    with caplog.at_level(logging.INFO, "ramet"), httpx2.Client(base_url=server.url) as client:
        client.post("/v1/completions", json={})
        client.get("/metrics", headers=alice)
        client.post("/v1/chat/completions", headers=alice, content=b"x" * 101)
        client.get("/v1/responses/some-id", headers={"x-api-key": "wrong"})
        client.get("/v1/completions", headers=alice)
        client.get("/nothing/some-id")
        counted = client.get("/metrics", headers=boss).text
    lines = [" ".join(record.getMessage().split()[1:5]) for record in caplog.records if "/" in record.getMessage()]
    assert lines[:4] == [
        "- POST /v1/completions 401",
        "alice GET /metrics 403",
        "alice POST /v1/chat/completions 413",
        "- GET /v1/responses/{response_id} 401",
    ]
    assert "alice GET /v1/completions 405" in lines
    assert 'http_requests_total{method="GET",path="/metrics",status="403"} 1.0' in counted
    assert "some-id" not in counted
    assert 'path="none",status="401"} 1.0' in counted


def test_bodies_of_unknown_length_are_counted_as_they_come(serve: Serve) -> None:
    server = serve(max_body_bytes=100)
    answer = httpx2.post(f"{server.url}/v1/completions", content=iter([b"x" * 60, b"x" * 60]))
    assert answer.status_code == 413


def test_bodies_of_nothing_but_brackets_are_refused(http: httpx2.Client) -> None:
    content = b'{"prompt": "x", "max_tokens": 1, "filling": [' + b"[],{}," * 125_000 + b"0]}"
    answer = http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert "250000 brackets" in answer.json()["error"]["message"]


def test_all_bodies_together_have_a_limit(serve_plain: Serve) -> None:
    server = serve_plain(max_total_body_bytes=100_000)
    body = {"max_tokens": 4000, "stream": True, "filling": "x" * 70_000}
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        with client.stream("POST", "/plain", json=body) as first:
            assert first.status_code == 200
            lines = first.iter_lines()  # held: the stream is closed with it
            assert next(lines)
            refused = client.post("/plain", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "server_full")
            assert int(refused.headers["retry-after"]) >= 1
            assert client.post("/plain", json={"max_tokens": 1, "filling": "x" * 40_000}).status_code == 200
        while True:
            answer = client.post("/plain", json={**body, "max_tokens": 1, "stream": False})
            if answer.status_code == 200:
                break


def test_large_bodies_and_headers_are_refused(serve: Serve) -> None:
    server = serve(max_body_bytes=100, max_header_bytes=2000)
    with httpx2.Client(base_url=server.url) as client:
        assert client.post("/v1/models", content=b"x" * 101).status_code == 413
        assert client.get("/v1/models", headers={"x-big": "x" * 1900}).status_code == 431


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"input": ', "the body is not JSON: Expecting value at character 10"),
        (b"[]", "the body: Input should be a valid dictionary"),
        (b'{"input": {}}', "input: Input should be a text or a list of items, not {}"),
        (b'{"tools": [{"type": "function"}, {"name": 1}]}', "tools[1].type is missing"),
        (b'{"tools": {"list": []}}', "tools: Input should be a valid list, not {'list': []}"),
        (b'{"text": {"format": {"type": 5}}}', "text.format.type: Input should be 'text', 'json_object' or"),
        (b"[" * 100_000, ""),
    ],
)
def test_what_is_wrong_with_a_body_is_said_with_its_place(http: httpx2.Client, content: bytes, message: str) -> None:
    answer = http.post("/v1/responses", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize("has_keys", [False, True])
def test_the_document_says_where_a_key_goes(serve: Serve, has_keys: bool) -> None:
    server = serve(api_keys=("a-secret-key",) if has_keys else ())
    document = httpx2.get(f"{server.url}/openapi.json").json()
    assert set(document["components"]["securitySchemes"]) == {"bearer", "x-api-key"}
    either = [{"bearer": []}, {"x-api-key": []}]
    assert document["paths"]["/v1/completions"]["post"]["security"] == (either if has_keys else [*either, {}])
    assert document["paths"]["/health"]["get"]["security"] == []
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation.get("description"), path


def test_who_is_no_admin_is_told_why(serve: Serve) -> None:
    server = serve(api_keys=("a-secret-key",), admin_api_keys=("ops=another-secret",))
    answer = httpx2.post(f"{server.url}/flush_cache", headers={"x-api-key": "a-secret-key"})
    assert answer.status_code == 403
    message = "/flush_cache is for admin keys only: it acts on, or tells of, what is others'"
    assert answer.json()["error"]["message"] == message


def test_headers_are_not_bounded_below_what_clients_send() -> None:
    with pytest.raises(InvalidConfigError, match="max_header_bytes=1023 must be an integer of at least 1024"):
        ServerConfig(max_header_bytes=1023)


def test_a_405_says_what_the_path_is_used_with(http: httpx2.Client) -> None:
    answer = http.get("/v1/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
