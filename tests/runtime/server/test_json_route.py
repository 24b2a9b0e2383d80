"""Bodies before a handler sees them: every refusal says why, and none costs more than the body's own size."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError

from ramet.runtime.server.app import ROUTERS
from ramet.runtime.server.errors import ApiError
from ramet.runtime.server.json_route import JsonRoute, read_body
from ramet.runtime.server.openai.chat_request import ChatCompletionRequest

from .conftest import Serve

JSON = {"content-type": "application/json"}
ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute) and route.body_field]
WRONG_ITEMS = (1, "", None, True, {}, [], [""], {"role": 1}, 0.5)


def model_of(route: APIRoute) -> type[BaseModel]:
    assert route.body_field is not None
    model = route.body_field.field_info.annotation
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return model


MODELS = sorted({model_of(route) for route in ROUTES}, key=lambda model: model.__name__)


def nodes(schema: object) -> Iterator[dict[str, Any]]:
    """All parts of a core schema that have a type."""
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema
        for key, part in schema.items():
            if key not in ("json_schema_input_schema", "serialization"):  # they check nothing
                yield from nodes(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from nodes(part)


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (rb'{"messages": [{"role": "user", "content": "a\ud800"}]}', "messages[0].content"),
        (b'{"messages": [{"role": "user", "content": "a\xed\xa0\x80"}]}', "messages[0].content"),
        (rb'{"messages": [{"role": "user", "\udfff": "a"}]}', "messages[0]"),
        (rb'{"messages": [{}], "tools": [{"function": {"name": "\udc00"}}]}', "tools[0].function.name"),
        (b'{"messages": [{}], "tools": [{"function": {"parameters": {"x": NaN}}}]}', "tools[0].function.parameters.x"),
        (b'{"messages": [{}], "tool_choice": {"x": -Infinity}}', "tool_choice.x"),
        (b'{"messages": [{}], "response_format": {"x": [1, 1e999]}}', "response_format.x[1]"),
        (b'{"messages": [{}], "temperature": NaN}', "temperature"),
    ],
)
def test_what_no_json_says_is_refused_where_it_stands(content: bytes, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_body(content, ChatCompletionRequest)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert param in refused.value.message


def test_whole_pairs_and_fields_that_nobody_knows_are_taken() -> None:
    content = rb'{"messages": [{"content": "\ud83d\ude00"}], "unknown": [NaN, "\ud800"], "top_p": 1e-3}'
    body = read_body(content, ChatCompletionRequest)
    assert isinstance(body, ChatCompletionRequest)
    assert body.messages[0]["content"] == "\U0001f600"


def test_every_body_is_read_by_json_route() -> None:
    assert len(MODELS) >= 8
    assert [route.path for route in ROUTES if not isinstance(route, JsonRoute)] == []


@pytest.mark.parametrize("model", MODELS)
def test_every_list_of_every_body_ends_at_its_first_error(model: type[BaseModel]) -> None:
    """By its schema, so that no list is forgotten whatever it is in."""
    for node in nodes(TypeAdapter(model).core_schema):
        is_list = node["type"] in ("list", "tuple", "set", "frozenset", "generator")
        is_checked_dict = node["type"] == "dict" and node.get("values_schema", {"type": "any"})["type"] != "any"
        assert not (is_list or is_checked_dict) or node.get("fail_fast"), node


@pytest.mark.parametrize("model", MODELS)
def test_a_thousand_wrong_items_are_no_more_errors_than_one(model: type[BaseModel]) -> None:
    def num_errors(body: dict[str, Any]) -> int:
        try:
            model.model_validate(body)
        except ValidationError as error:
            return error.error_count()
        return 0

    for name, field in model.model_fields.items():
        for item in WRONG_ITEMS:
            key = field.alias or name
            assert num_errors({key: [item] * 1000}) <= num_errors({key: [item]}), (name, item)
            many = {str(idx): item for idx in range(1000)}
            assert num_errors({key: many}) <= num_errors({key: {"0": item}}), (name, item)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the body is empty"),
        (b"{", "the body is not JSON: Expecting property name enclosed in double quotes at character 1"),
        (b'{"prompt": "\xff"}', "the body is not UTF-8: invalid start byte at byte 12"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "the body has an integer of more than 4300 digits, the limit"),
        (b'{"messages": ' + b"[" * 100_000, "the body is nested too deeply"),
        (b'{"messages": [1, 1, 1]}', "messages[0]: Input should be a valid dictionary, not 1"),
        (b'{"messages": 7}', "messages: Input should be a valid list, not 7"),
    ],
)
def test_what_is_wrong_is_said(content: bytes, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_body(content, ChatCompletionRequest)
    assert caught.value.status == 400
    assert caught.value.message.startswith(message)


def test_a_message_shows_only_the_beginning_of_a_large_value() -> None:
    with pytest.raises(ApiError) as caught:
        read_body(json.dumps({"model": [["x" * 1000] * 1000] * 10}).encode(), ChatCompletionRequest)
    assert len(caught.value.message) < 200


@pytest.mark.model
@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "the request has no Content-Type"),
        ({"content-type": "application/x-www-form-urlencoded"}, "not 'application/x-www-form-urlencoded'"),
        ({"content-type": "text/plain"}, "called so by Content-Type: application/json"),
        ({**JSON, "content-encoding": "gzip"}, "Content-Encoding: gzip is not taken here"),
    ],
)
def test_other_bodies_than_plain_json_are_415(http: httpx2.Client, headers: dict[str, str], message: str) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    content = zlib.compress(body) if "content-encoding" in headers else body
    answer = http.post("/v1/completions", content=content, headers=headers)
    assert answer.status_code == 415
    assert message in answer.json()["error"]["message"]


@pytest.mark.model
@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"])
def test_json_is_taken_by_all_its_names(http: httpx2.Client, kind: str) -> None:
    answer = http.post("/tokenize", content=b'{"prompt": "a"}', headers={"content-type": kind})
    assert answer.status_code == 200


@pytest.mark.model
def test_a_body_without_a_length_is_refused_by_its_size(serve: Serve) -> None:
    url = serve(max_body_bytes=1000).url
    answer = httpx2.post(f"{url}/v1/messages", content=(b"x" * 100 for _ in range(20)), headers=JSON)
    assert answer.status_code == 413
    assert answer.json()["error"]["message"] == "the body has more than 1000 bytes, the limit of this server"


@pytest.mark.model
def test_large_bodies_are_read_by_workers(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[str] = []
    real = json.loads

    def loads(text: bytes, **options: Any) -> object:
        readers.append(threading.current_thread().name)
        return real(text, **options)

    monkeypatch.setattr("ramet.runtime.server.json_route.json.loads", loads)
    url = serve().url
    for length in (10, 100_000):
        answer = httpx2.post(f"{url}/tokenize", json={"prompt": "a" * length})
        assert answer.status_code == 200
    small, large = [name for name in readers if name.startswith("ramet-")]
    assert small == "ramet-server"
    assert large.startswith("ramet-read")


@pytest.mark.model
@pytest.mark.parametrize("key", ["--1", "1.5", "", "9" * 5000])
def test_a_bias_for_no_token_names_its_field(http: httpx2.Client, key: str) -> None:
    answer = http.post("/v1/completions", json={"prompt": "a", "logit_bias": {key: 1}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")


@pytest.mark.model
def test_parameters_of_the_query_are_named(http: httpx2.Client) -> None:
    answer = http.post("/start_profile?num_steps=many")
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("num_steps: Input should be a valid integer")
