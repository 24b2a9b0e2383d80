"""A good request of every endpoint there is, in its most talkative form: what mutations start from."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

Body = dict[str, Any]

_SAMPLING: Body = {"temperature": 0.7, "top_p": 0.9, "seed": 3, "frequency_penalty": 0.1, "presence_penalty": 0.1}
_EXTRA: Body = {"top_k": 20, "min_p": 0.01, "ignore_eos": False, "cache_salt": "salt", "priority": 1}
_SCHEMA: Body = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_TOOL: Body = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": _SCHEMA}}
_MESSAGES: list[Body] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "Say hello."}]},
]

BODIES: dict[str, list[Body]] = {
    "/generate": [
        {
            "text": "One two",
            "sampling_params": {"max_new_tokens": 3, "temperature": 0, "stop": ["."], "regex": "[a-z ]*", "n": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 2,
            "stream": False,
            "rid": "mine",
            "cache_salt": "salt",
            "priority": 0,
        },
        {"input_ids": [[1, 2, 3], [1, 2]], "sampling_params": {"max_new_tokens": 2}, "stream": True},
    ],
    "/tokenize": [{"prompt": "One", "add_special_tokens": False}, {"messages": _MESSAGES, "tools": [_TOOL]}],
    "/detokenize": [{"tokens": [1, 2, 3], "skip_special_tokens": True}],
    "/abort_request": [{"rid": "nobody", "abort_all": False}],
    "/flush_cache": [{}],
    "/v1/completions": [
        {
            "model": None,
            "prompt": ["One two", "Three"],
            "max_tokens": 3,
            "n": 1,
            "best_of": 1,
            "echo": True,
            "logprobs": 2,
            "stop": [".", "!"],
            "logit_bias": {"5": 1.0},
            "stream": False,
            **_SAMPLING,
            **_EXTRA,
        },
        {"prompt": [[1, 2, 3]], "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}},
        {"prompt": "One", "max_tokens": 6, "guided_regex": "[ab]+"},
        {"prompt": "One", "max_tokens": 6, "structured_outputs": {"choice": ["a", "b"]}},
    ],
    "/v1/chat/completions": [
        {
            "messages": _MESSAGES,
            "max_completion_tokens": 4,
            "n": 1,
            "logprobs": True,
            "top_logprobs": 2,
            "stop": ".",
            "stream": True,
            "stream_options": {"include_usage": True},
            "user": "me",
            **_SAMPLING,
            **_EXTRA,
        },
        {
            "messages": [*_MESSAGES, {"role": "assistant", "content": None, "tool_calls": []}, _MESSAGES[1]],
            "max_tokens": 8,
            "tools": [_TOOL],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "parallel_tool_calls": False,
        },
        {
            "messages": _MESSAGES,
            "max_tokens": 8,
            "tools": [_TOOL],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "look"}}]},
            },
        },
        {
            "messages": _MESSAGES,
            "max_tokens": 8,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA, "strict": True}},
        },
    ],
    "/v1/responses": [
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Say hello."}]}],
            "instructions": "Be short.",
            "max_output_tokens": 4,
            "stream": True,
            "store": False,
            "temperature": 0.5,
            "text": {"format": {"type": "text"}},
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
        },
        {
            "input": "Look at three.",
            "max_output_tokens": 8,
            "tools": [{"type": "function", "name": "look", "parameters": _SCHEMA, "strict": True}],
            "tool_choice": "required",
            "metadata": {"key": "value"},
            "previous_response_id": None,
        },
    ],
    "/v1/messages": [
        {
            "model": "smollm2",
            "max_tokens": 4,
            "system": [{"type": "text", "text": "Be short."}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}],
            "stop_sequences": ["."],
            "stream": True,
            "temperature": 0.5,
            "top_k": 5,
        },
        {
            "model": "smollm2",
            "max_tokens": 8,
            "messages": [{"role": "user", "content": "Look at three."}],
            "tools": [{"name": "look", "description": "Looks.", "input_schema": _SCHEMA}],
            "tool_choice": {"type": "tool", "name": "look"},
        },
    ],
    "/v1/messages/count_tokens": [
        {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello."}], "system": "Be short."}
    ],
    "/v1/embeddings": [{"model": "smollm2", "input": "One"}],
}
"""By path. `tests/clients/test_schemathesis.py` reads what the document says of these; this is what clients send."""

GETS = (
    *("/", "/health", "/ready", "/metrics", "/openapi.json", "/docs", "/v1/models", "/v1/models/smollm2"),
    *("/server_info", "/get_model_info", "/tokenizer_info", "/v1/loads", "/v1/responses/resp_none"),
)


def requests_of(paths: Collection[str], model: str) -> list[tuple[str, Body]]:
    """Path and body of every good request of these paths."""
    return [
        (path, {**body, "model": model} if "model" in body else body)
        for path, bodies in BODIES.items()
        if path in paths
        for body in bodies
    ]
