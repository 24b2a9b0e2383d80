"""Long texts are refused before they are tokenised, wherever texts come in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from ramet import LLM
from ramet.runtime.tokenizer import Tokenizer

from .conftest import Serve

pytestmark = pytest.mark.model
LONG = "many words " * 100
SAID = [{"role": "user", "content": LONG}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["a", LONG]}, "prompt[1]"),
        ("/v1/chat/completions", {"messages": SAID}, "messages"),
        ("/v1/responses", {"input": LONG}, "input"),
        ("/v1/messages", {"model": "smollm2", "max_tokens": 1, "messages": SAID}, "messages"),
        ("/v1/messages/count_tokens", {"model": "smollm2", "messages": SAID}, "messages"),
        ("/generate", {"text": LONG}, "text"),
        ("/generate", {"text": ["a", LONG]}, "text[1]"),
        ("/tokenize", {"prompt": LONG}, "prompt"),
        ("/tokenize", {"prompt": [LONG[:400]] * 3}, "prompt"),
        ("/tokenize", {"messages": SAID}, "messages"),
        ("/tokenize", {"segments": [{"text": LONG}]}, "segments"),
    ],
)
def test_a_long_text_is_not_tokenised(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], param: str
) -> None:
    encoded: list[str] = []
    real = Tokenizer.encode_batch

    def encode_batch(self: Tokenizer, texts: Sequence[str], **options: Any) -> list[list[int]]:
        encoded.extend(texts)
        return real(self, texts, **options)

    monkeypatch.setattr(Tokenizer, "encode_batch", encode_batch)
    answer = httpx2.post(f"{serve(max_prompt_chars=1000).url}{path}", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["message"].startswith(f"{param} has ")
    assert "characters, and this server tokenises 1000 at a time" in error["message"]
    assert error.get("param", param) == param
    assert not [text for text in encoded if LONG in text]


def test_the_usual_limit_comes_from_the_context(serve: Serve, smollm2: LLM) -> None:
    most = 32 * (smollm2.max_context_len + 1)
    answer = httpx2.post(f"{serve().url}/tokenize", json={"prompt": "x" * (most + 1)}, timeout=60)
    assert f"this server tokenises {most} at a time" in answer.json()["error"]["message"]


def test_a_prompt_for_the_engine_does_not_wait_for_what_is_only_tokenised(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All workers that tokenise for `/tokenize` are held, and more of its requests wait; a completion comes through."""
    is_free = threading.Event()
    real = Tokenizer.encode_batch

    def encode_batch(self: Tokenizer, texts: Sequence[str], **options: Any) -> list[list[int]]:
        assert "held" not in texts or is_free.wait(60)
        return real(self, texts, **options)

    monkeypatch.setattr(Tokenizer, "encode_batch", encode_batch)
    url = serve().url
    statuses: list[int] = []
    asking = [
        threading.Thread(
            target=lambda: statuses.append(
                httpx2.post(f"{url}/tokenize", json={"prompt": "held"}, timeout=60).status_code
            )
        )
        for _ in range(8)
    ]
    for each in asking:
        each.start()
    try:
        answer = httpx2.post(f"{url}/v1/completions", json={"prompt": "Hi", "max_tokens": 1}, timeout=30)
        assert answer.status_code == 200
        assert statuses == []
    finally:
        is_free.set()
        for each in asking:
            each.join()
    assert statuses == [200] * 8
