"""What fails inside is told once, to the log, under the id that the client has; what asks too much is the client's."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx2
import pytest

from ramet.chat_message import ChatTemplateError
from ramet.grammar_spec import InvalidGrammarSpecError
from ramet.json_depth import MAX_JSON_DEPTH
from ramet.runtime.errors import InvalidRequestError
from ramet.runtime.output_processor import OutputProcessor
from ramet.runtime.server.errors import reported
from ramet.sampling_params import InvalidSamplingParamsError

pytestmark = pytest.mark.model

CHAT = [{"role": "user", "content": "Say the word the."}]
FAMILIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "the the the", "max_tokens": 4},
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 4},
    "/v1/responses": {"input": "Say the word the.", "max_output_tokens": 16},
    "/v1/messages": {"model": "smollm2", "messages": CHAT, "max_tokens": 4},
    "/generate": {"text": "the the the", "sampling_params": {"max_new_tokens": 4}},
}
POISON = "the poison word"


def with_sampling(path: str, **fields: Any) -> dict[str, Any]:
    body = dict(FAMILIES[path])
    return {**body, "sampling_params": body["sampling_params"] | fields} if path == "/generate" else body | fields


def message_of(answer: httpx2.Response) -> str:
    return str(answer.json()["error"]["message"])


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the text of a request with this stop string fails."""
    publish = OutputProcessor._publish

    def failing(self: OutputProcessor, tokens: Any, now: float) -> Any:
        if POISON in tokens.state.request.sampling_params.stop_strings:
            raise RuntimeError("the broken part")
        return publish(self, tokens, now)

    monkeypatch.setattr(OutputProcessor, "_publish", failing)


@pytest.mark.parametrize("path", sorted(FAMILIES.keys() - {"/v1/responses"}))  # it has no stop strings
@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_log_says_why_under_the_clients_id(
    http: httpx2.Client, poisoned: None, caplog: pytest.LogCaptureFixture, path: str, is_streamed: bool
) -> None:
    name = "stop_sequences" if path == "/v1/messages" else "stop"
    body = {**with_sampling(path, **{name: [POISON]}), "stream": is_streamed}
    with caplog.at_level(logging.ERROR, logger="ramet.runtime.server"):
        answer = http.post(path, json=body)
    request_id = answer.headers["x-request-id"]
    assert f"request {request_id} failed inside the server; its log says why" in answer.text
    assert "the broken part" not in answer.text
    (record,) = [each for each in caplog.records if each.name == "ramet.runtime.server.errors"]
    assert request_id in record.getMessage()
    assert "the broken part" in record.getMessage()


def test_one_prompt_of_several_fails_under_the_clients_id(
    http: httpx2.Client, poisoned: None, caplog: pytest.LogCaptureFixture
) -> None:
    params = [{"max_new_tokens": 2}, {"max_new_tokens": 2, "stop": [POISON]}]
    answer = http.post("/generate", json={"text": ["a", "b"], "sampling_params": params})
    reason = answer.json()[1]["meta_info"]["finish_reason"]
    assert answer.headers["x-request-id"] in reason["message"]
    assert answer.headers["x-request-id"] in caplog.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("an axis is out of bounds"), 500),
        (json.JSONDecodeError("a file of ours is broken", "", 0), 500),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bytes of ours"), 500),
        (InvalidRequestError("n=0 must be 1 or more"), 400),
        (InvalidSamplingParamsError("top_p=7 is not allowed"), 400),
        (InvalidGrammarSpecError("choices=[] is not allowed"), 400),
        (ChatTemplateError("messages[0] has no role"), 400),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), 400),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_only_what_was_refused_on_purpose_is_the_clients(
    caplog: pytest.LogCaptureFixture, error: Exception, status: int
) -> None:
    failure = reported(error, "req-1")
    assert failure.status == status
    assert (str(error) in failure.message) == (status == 400)
    assert ("request req-1 failed" in caplog.text) == (status == 500)


def test_a_long_traceback_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    error = RuntimeError("the first")
    for idx in range(400):
        try:
            raise RuntimeError(f"link {idx}") from error
        except RuntimeError as linked:
            error = linked
    failure = reported(error, "req-1")
    assert (failure.status, failure.code) == (500, "internal_error")
    (record,) = caplog.records
    assert record.getMessage().count("\n") < 150
    assert "link 399" in record.getMessage()


@pytest.mark.parametrize("path", FAMILIES)
@pytest.mark.parametrize("penalty", [1e-38, 1e-300, 5e-324])
def test_a_penalty_that_no_number_can_hold_is_the_clients(http: httpx2.Client, path: str, penalty: float) -> None:
    answer = http.post(path, json=with_sampling(path, repetition_penalty=penalty))
    assert answer.status_code == 400, answer.text
    assert message_of(answer).startswith(f"repetition_penalty={penalty}")


def test_a_constraint_that_grows_too_complex_is_the_clients(http: httpx2.Client) -> None:
    for path in ("/v1/completions", "/generate"):
        answer = http.post(path, json=with_sampling(path, regex="(a?){2000}a{2000}"))
        assert answer.status_code == 400, answer.text
        assert message_of(answer).startswith("its constraint is too complex")


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


@pytest.mark.parametrize("path", [*FAMILIES, "/tokenize"])
@pytest.mark.parametrize("depth", [MAX_JSON_DEPTH + 1, 500, 900])
def test_nesting_has_a_limit_that_is_named(http: httpx2.Client, path: str, depth: int) -> None:
    body = {**FAMILIES.get(path, {"prompt": "x"}), "unknown": nested(depth)}
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert message_of(answer).startswith("unknown is nested too deeply")
    body["unknown"] = nested(MAX_JSON_DEPTH)
    assert http.post(path, json=body).status_code == 200


@pytest.mark.parametrize("depth", [55, 64, 500, 900])
def test_nested_messages_and_tools(http: httpx2.Client, depth: int) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [nested(depth)]}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    arguments = '{"a":' * depth + "1" + "}" * depth
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    asked = {"role": "assistant", "content": "", "tool_calls": calls}
    found = [
        http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1, **more})
        for messages, more in (
            ([{**CHAT[0], "unknown": nested(depth)}], {}),
            (CHAT, {"tools": tools}),
            ([*CHAT, asked, {"role": "tool", "tool_call_id": "1", "content": "x"}], {}),
        )
    ]
    assert all(answer.status_code in (200, 400) for answer in found), [answer.text for answer in found]
    assert all("deep" in message_of(answer) for answer in found if answer.status_code == 400)
    assert depth > MAX_JSON_DEPTH or found[2].status_code == 200
