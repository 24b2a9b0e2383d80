"""A client with a wrong base URL is told the right one, in the form that it knows."""

from __future__ import annotations

import httpx2
import pytest

pytestmark = pytest.mark.model

OPENAI = "the base_url of OpenAI's clients ends with /v1, once"
ANTHROPIC = "the base_url of Anthropic's clients ends without /v1"


@pytest.mark.parametrize(
    ("path", "meant", "why"),
    [
        ("/chat/completions", "/v1/chat/completions", OPENAI),
        ("/completions", "/v1/completions", OPENAI),
        ("/v1/v1/chat/completions", "/v1/chat/completions", OPENAI),
        ("/v1/chat/completions/", "/v1/chat/completions", OPENAI),
        ("/models", "/v1/models", OPENAI),
        ("/v1/v1/messages", "/v1/messages", ANTHROPIC),
        ("/messages", "/v1/messages", ANTHROPIC),
        ("/v1/generate", "/generate", ""),
        ("/v1", "base_url", ""),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_wrong_base_url_is_named(http: httpx2.Client, method: str, path: str, meant: str, why: str) -> None:
    answer = http.request(method, path)
    error = answer.json()["error"]
    assert answer.status_code == 404
    assert error["type"] == "not_found_error"
    assert meant in error["message"].removeprefix(f"there is no {path} here")
    assert why in error["message"]
    assert (answer.json().get("type") == "error") == meant.startswith("/v1/messages")


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/v1/v1", "/api/chat"])
def test_nothing_is_guessed(http: httpx2.Client, path: str) -> None:
    assert http.get(path).json()["error"]["message"] == f"there is no {path} here"
