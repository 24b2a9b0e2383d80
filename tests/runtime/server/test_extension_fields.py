"""The document tells what every field means that OpenAI's, Anthropic's and SGLang's references do not."""

from __future__ import annotations

import httpx2
import pytest

from ramet.runtime.server.extension_fields import EXTENSION_FIELDS

pytestmark = pytest.mark.model

IN_THE_REFERENCES = {
    *("abort_all", "background", "conversation", "echo", "frequency_penalty", "function_call", "functions", "include"),
    *("input", "instructions", "logit_bias", "logprobs", "max_completion_tokens", "max_output_tokens", "max_tokens"),
    *("mcp_servers", "messages", "metadata", "modalities", "model", "n", "output_config", "parallel_tool_calls"),
    *("presence_penalty", "previous_response_id", "prompt", "response_format", "stop", "stop_sequences", "store"),
    *("stream", "stream_options", "suffix", "system", "temperature", "text", "thinking", "tool_choice", "tools"),
    *("top_logprobs", "top_p", "truncation", "user"),
}


def test_the_document_says_what_fields_of_our_own_mean(http: httpx2.Client) -> None:
    document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    told = set()
    for path, operations in document["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        name = content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
        fields = schemas[name]["properties"] if name else {}
        described = {field for field, about in fields.items() if about.get("description")}
        assert fields.keys() - described <= IN_THE_REFERENCES, path
        told |= described
    told |= schemas["Segment"]["properties"].keys()
    assert EXTENSION_FIELDS.keys() <= told, "of a field that there is no more"
