"""A 400 names the field that the client has sent, whatever it is called further in."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.model

Json = dict[str, Any]
BAD_SCHEMA = {"type": "object", "properties": {"a": {"type": "nope"}}}
FORMAT = {"type": "json_schema", "name": "x", "schema": BAD_SCHEMA}
LONG = "hi " * 9000
MESSAGES = [{"role": "user", "content": "hi"}]
BASES: dict[str, Json] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 16},
    "/generate": {"text": "hi", "sampling_params": {"max_new_tokens": 2}},
}
OPENAI: list[tuple[Json, str]] = [
    ({"max_tokens": 1_000_000}, "max_tokens"),
    ({"guided_regex": "(("}, "guided_regex"),
    ({"regex": "(("}, "regex"),
    ({"guided_json": BAD_SCHEMA}, "guided_json"),
    ({"guided_grammar": "root ::= ("}, "guided_grammar"),
    ({"ebnf": "root ::= ("}, "ebnf"),
    ({"guided_choice": []}, "guided_choice"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD_SCHEMA}}},
        "response_format",
    ),
    ({"structured_outputs": {"regex": "(("}}, "structured_outputs.regex"),
    ({"top_k": -1, "min_tokens": 9}, "min_tokens"),
    ({"guided_choice": ["a", "a"]}, "guided_choice"),
    ({"guided_choice": [""]}, "guided_choice"),
    ({"guided_json": '{"minimum": NaN}'}, "guided_json"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "3"}, "guided_json"),
    ({"logit_bias": {"1": -100, "01": 100}}, "logit_bias"),
]
TOOL: Json = {"type": "function", "function": {"name": "f"}}
FLAT_TOOL: Json = {"type": "function", "name": "f"}
CASES: list[tuple[str, Json, str]] = [
    *((path, fields, param) for path in ("/v1/chat/completions", "/v1/completions") for fields, param in OPENAI),
    ("/v1/chat/completions", {"max_completion_tokens": 1_000_000}, "max_completion_tokens"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
    ("/v1/completions", {"prompt": LONG}, "prompt"),
    ("/v1/completions", {"prompt": [10_000_000]}, "prompt"),
    ("/v1/responses", {"max_output_tokens": 1_000_000}, "max_output_tokens"),
    ("/v1/responses", {"text": {"format": FORMAT}}, "text.format.schema"),
    ("/v1/responses", {"regex": "(("}, "regex"),
    ("/v1/responses", {"input": LONG}, "input"),
    ("/generate", {"sampling_params": {"regex": "(("}}, "regex"),
    ("/generate", {"sampling_params": {"json_schema": '{"type": "nope"}'}}, "json_schema"),
    ("/generate", {"sampling_params": {"max_new_tokens": 1_000_000}}, "max_new_tokens"),
    ("/generate", {"text": LONG}, "text"),
    ("/generate", {"text": None, "input_ids": [10_000_000]}, "input_ids"),
    ("/generate", {"text": ""}, "text"),
    ("/generate", {"text": ["a", ""]}, "text"),
    ("/generate", {"text": None, "input_ids": [[]]}, "input_ids"),
    ("/generate", {"input_ids": [1]}, "text"),
    ("/generate", {"extra_key": ""}, "extra_key"),
    ("/generate", {"cache_salt": ""}, "cache_salt"),
    ("/generate", {"sampling_params": {"logit_bias": {"1": -100, "01": 100}}}, "logit_bias"),
    ("/v1/chat/completions", {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ("/v1/chat/completions", {"messages": MESSAGES * 20_000}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [TOOL] * 20_000}]}, "messages"),
    ("/v1/chat/completions", {"tools": [TOOL], "regex": "a"}, "tools"),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": "hi"}, {"role": "system", "content": "x"}] * 9_000},
        "input",
    ),
    ("/v1/responses", {"text": {"format": FORMAT}, "tools": [FLAT_TOOL]}, "text.format.schema"),
    *(
        (path, {"tools": [dict(tool, name=f"f{idx}", function={"name": f"f{idx}"}) for idx in range(300)]}, "tools")
        for path, tool in (("/v1/chat/completions", TOOL), ("/v1/responses", FLAT_TOOL))
    ),
]


@pytest.mark.parametrize(("path", "fields", "param"), CASES)
def test_a_400_names_the_clients_field(http: httpx2.Client, path: str, fields: Json, param: str) -> None:
    answer = http.post(path, json=BASES[path] | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error["message"]
    assert "max_tokens=" not in error["message"] or path not in ("/generate", "/v1/responses")
