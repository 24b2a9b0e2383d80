"""How long a worker is at what one request asks for."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from ramet import LLM, SamplingParams
from ramet.runtime.generate_request import read_generate
from ramet.runtime.request import Request
from ramet.runtime.server import preparation as module
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.errors import ApiError
from ramet.runtime.server.openai.completion_request import CompletionRequest, completion_requests
from ramet.runtime.server.preparation import GivenUpError, Preparation
from ramet.runtime.server.tenant import Tenant


class Clock:
    """Time that passes only where it is let."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def request(**constraint: Any) -> Request:
    return Request(request_id="r", prompt_token_ids=(1,), sampling_params=SamplingParams(max_tokens=1, **constraint))


def test_all_grammars_of_a_request_have_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    prepared: list[Request] = []

    def complete(given: Request) -> Request:
        clock.now += 4.0
        prepared.append(given)
        return given

    preparing = Preparation(complete, lambda: False)
    asked = request(regex="a+")
    for _ in range(3):
        preparing.prepare(asked)
    with pytest.raises(ApiError, match=r"more than 10 s to compile, all together") as caught:
        preparing.prepare(asked)
    assert (caught.value.status, caught.value.param) == (400, "regex")
    assert prepared == [asked] * 3


def test_it_ends_where_nobody_wants_it() -> None:
    preparing = Preparation(lambda given: given, lambda: True)
    with pytest.raises(GivenUpError):
        preparing.prepare(request())


@pytest.mark.model
def test_prompts_are_not_tokenised_for_nobody(smollm2: LLM) -> None:
    asked: list[bool] = []

    def is_given_up() -> bool:
        asked.append(True)
        return len(asked) > 2

    preparing = Preparation(smollm2.prepare, is_given_up)
    body = CompletionRequest(prompt=["a", "b", "c", "d"])
    ask = body.ask(ServerConfig())
    with pytest.raises(GivenUpError):
        completion_requests(ask, body, smollm2, Tenant("me", "", is_admin=True), preparing)
    assert len(asked) == 3
    asked.clear()
    with pytest.raises(GivenUpError):
        read_generate(
            smollm2.tokenizer, smollm2.new_request_id, prompt=["a", "b", "c", "d"], input_ids=None,
            sampling_params=None, return_logprob=False, logprob_start_len=-1, top_logprobs_num=0,
            return_text_in_logprobs=False, others={}, before_each=preparing.go_on,
        )  # fmt: skip
    assert len(asked) == 3


@pytest.mark.model
def test_a_client_is_told_which_field_takes_too_long(http: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PREPARE_S", 0.0)
    patterns = [{"max_new_tokens": 1, "regex": f"too-long-{idx}"} for idx in range(2)]
    refused = http.post("/generate", json={"text": ["a", "b"], "sampling_params": patterns})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "regex")
    same = http.post("/v1/completions", json={"prompt": "a", "regex": "too-long-0", "max_tokens": 1})
    assert same.status_code == 200  # one is always compiled
    unmet = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": unmet}}
    asked = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "max_tokens": 1}
    refused = http.post("/v1/chat/completions", json=asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
