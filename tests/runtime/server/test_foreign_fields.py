"""What limits or shapes an answer at one endpoint is never dropped by another: over all bodies, and all such fields."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute

from ramet.native_params import NATIVE_NAMES, RAMET_NAMES
from ramet.runtime.server.app import ROUTERS
from ramet.runtime.server.body import Body
from ramet.runtime.server.errors import ApiError
from ramet.runtime.server.foreign_fields import ASKS_FOR_NOTHING, MEANINGS, missing, refuse_misspelt
from ramet.runtime.server.json_route import read_body

Json = dict[str, Any]
MESSAGES = [{"role": "user", "content": "hi"}]
BASES: dict[str, Json] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"model": "smollm2", "messages": MESSAGES, "max_tokens": 8},
    "/generate": {"text": "hi"},
}
EMPTY = "messages=[] is too short: it must have at least 1 item"
NAMES = [name for meaning in MEANINGS.values() for name in meaning.names]
ALSO = {name: set(meaning.names) for meaning in MEANINGS.values() for name in meaning.names}
AWAY_FROM = {name: meaning.at for meaning in MEANINGS.values() for name in meaning.names}
NATIVE = {*NATIVE_NAMES.values(), *RAMET_NAMES.values()}


def bodies() -> dict[str, type[Body]]:
    found = {}
    for route in (route for router in ROUTERS for route in router.routes):
        if isinstance(route, APIRoute) and route.body_field is not None and route.include_in_schema:
            model = route.body_field.field_info.annotation
            if isinstance(model, type) and issubclass(model, Body) and model.CALLED_HERE is not None:
                found[route.path] = model
    return found


BODIES = bodies()


def refusal(path: str, fields: Json) -> ApiError | None:
    try:
        read_body(json.dumps(BASES[path] | fields).encode(), BODIES[path])
    except ApiError as error:
        return error
    return None


def given(name: str, value: object) -> Json:
    root, _, inner = name.partition(".")
    return {root: {inner: value} if inner else value}


def test_every_endpoint_that_generates_looks() -> None:
    assert BODIES.keys() == BASES.keys()


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_known_here_is_refused_with_what_is(path: str, name: str) -> None:
    fields = BODIES[path].model_fields
    if name.partition(".")[0] in fields:
        return
    value = 200 if "tokens" in name or name in ("n", "best_of") else "x"
    refused = refusal(path, given(name, value))
    assert refused is not None
    assert (refused.status, refused.param) == (400, name)
    instead = refused.message.partition(": ")[2]
    if instead.startswith("use "):
        first = instead.removeprefix("use ").partition(",")[0]
        root, _, inner = first.partition(".")
        assert root in fields
        assert root != "sampling_params" or inner in NATIVE
    else:
        at = AWAY_FROM[name]
        assert instead.startswith(at)
        assert not ALSO[name].isdisjoint({*BODIES[at].model_fields, *NATIVE})


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize("name", NAMES)
def test_what_asks_for_nothing_is_taken(path: str, name: str) -> None:
    if name.partition(".")[0] not in BODIES[path].model_fields:
        for value in ASKS_FOR_NOTHING.get(name, (None, False, "", [], {})):
            assert refusal(path, given(name, value)) is None, value


def test_every_field_of_sampling_params_is_sent_there() -> None:
    for name in sorted(NATIVE):
        refused = refusal("/generate", {name: 0.5})
        assert refused is not None
        assert refused.message.endswith(f"use sampling_params.{name}"), refused.message


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"max_tokens": 5, "max_completion_tokens": 5}),
        ("/generate", {"max_new_tokens": 5, "sampling_params": {"max_new_tokens": 5}}),
        ("/v1/chat/completions", {"max_tokens": 5, "max_new_tokens": 5}),
    ],
)
def test_what_is_said_in_a_known_field_too_is_kept_anyway(path: str, fields: Json) -> None:
    assert refusal(path, fields) is None
    name = next(name for name in fields if name not in BODIES[path].model_fields)
    assert refusal(path, fields | {name: 6}) is not None


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "/v1/chat/completions",
            {
                **{"no_stop_trim": False, "separate_reasoning": True, "stream_reasoning": True, "stop_regex": None},
                **{"log_metrics": True, "return_bytes": False, "return_entropy": False, "lora_path": None},
                **{"continue_final_message": False, "skip_special_tokens": True, "sampling_seed": None},
            },
        ),
        ("/v1/completions", {"max_tokens": 9, "max_completion_tokens": 9, "stop": None, "ignore_eos": True}),
        ("/v1/responses", {"stop": None, "ignore_eos": True, "n": 1, "response_format": None}),
        ("/v1/messages", {"metadata": {"user_id": "u"}, "stop": [], "n": 1, "response_format": {"type": "text"}}),
        (
            "/generate",
            {
                **{"return_text_in_logprobs": True, "log_metrics": True, "return_bytes": False, "no_logs": False},
                **{"modalities": ["image"], "return_hidden_states": False, "token_ids_logprob": None, "background": 0},
                **{"bootstrap_host": None, "custom_labels": None, "conversation_id": None, "stream_options": None},
            },
        ),
    ],
)
def test_what_real_clients_and_routers_add_is_taken(path: str, fields: Json) -> None:
    assert refusal(path, fields) is None


def test_nearly_a_field_of_generate_is_taken_for_a_mistake() -> None:
    refused = refusal("/generate", {"return_logprobs": True})
    assert refused is not None
    assert refused.param == "return_logprobs"
    assert "did you mean 'return_logprob'?" in refused.message
    refuse_misspelt({"unheard_of": 1, "text": "a"}, ["text"])


def test_spellings_of_a_few_names_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr(
        "ramet.runtime.server.foreign_fields.did_you_mean", lambda name, *_, **__: compared.append(name) or ";"
    )
    many = {"x" * 100: 1} | {f"unknown_{idx}": 1 for idx in range(10_000)}
    refuse_misspelt(many, ["text"])
    missing("prompt", many)
    assert 0 < len(compared) < 200


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/chat/completions", {"message": MESSAGES}, "messages is missing; did you mean it by 'message'?"),
        ("/v1/chat/completions", {"prompt": "hi"}, "messages is missing: prompt is for /v1/completions"),
        ("/v1/completions", {"messages": MESSAGES}, "prompt is missing: messages is for /v1/chat/completions"),
        ("/v1/completions", {"promt": "hi"}, "prompt is missing; did you mean it by 'promt'?"),
        ("/v1/completions", {}, "prompt is missing"),
        ("/v1/messages", {"model": "a", "messages": MESSAGES}, "max_tokens is missing"),
        (
            "/v1/messages",
            BASES["/v1/messages"] | {"messages": [{"role": "user"}]},
            "messages[0].content is missing",
        ),
        ("/v1/messages", BASES["/v1/messages"] | {"messages": []}, EMPTY),
        ("/v1/chat/completions", {"messages": []}, EMPTY),
    ],
)
def test_what_is_missing_is_said_in_plain_words(path: str, body: Json, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_body(json.dumps(body).encode(), BODIES[path])
    assert caught.value.message == message


@pytest.mark.model
def test_the_dialect_of_the_endpoint_says_it(http: httpx2.Client) -> None:
    answer = http.post("/v1/messages", json=BASES["/v1/messages"] | {"guided_regex": "a"})
    message = "guided_regex is not a field of this endpoint: use regex"
    assert answer.status_code == 400
    assert answer.json() == {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
