"""`/v1/completions` through OpenAI's own client, and by hand where that cannot send it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet import LLM, SamplingParams
from ramet.runtime.outputs import RequestOutput
from ramet.runtime.server.listener import BackgroundServer
from ramet.runtime.server.openai.completion_logprobs import TextPositions

from ..conftest import Serve

pytestmark = pytest.mark.model

PROMPT = "The capital of Italy is"
OTHER = "Ein Café in 東京 🎉: déjà"


@pytest.fixture(scope="module")
def client(server: BackgroundServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def post(http: httpx2.Client, **fields: Any) -> httpx2.Response:
    return http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 4, "temperature": 0, **fields})


def chunks_of(answer: httpx2.Response) -> list[Any]:
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def generated(llm: LLM, prompts: Any, **params: Any) -> list[RequestOutput]:
    return llm.generate(prompts, SamplingParams(**{"max_tokens": 4, "temperature": 0, **params}), use_tqdm=False)


# Prompts


def test_every_form_of_prompt_is_answered_as_the_engine_does(http: httpx2.Client, smollm2: LLM) -> None:
    ids = smollm2.tokenizer.encode(PROMPT, add_special_tokens=True)
    other_ids = smollm2.tokenizer.encode(OTHER, add_special_tokens=True)
    expected, other = (output.outputs[0].text for output in generated(smollm2, [PROMPT, OTHER]))
    for prompt, texts in (
        (PROMPT, [expected]),
        (ids, [expected]),
        ([PROMPT, OTHER], [expected, other]),
        ([other_ids, ids, ids], [other, expected, expected]),
    ):
        answer = post(http, prompt=prompt).json()
        assert [choice["text"] for choice in answer["choices"]] == texts
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))
        assert answer["usage"]["completion_tokens"] == 4 * len(texts)
        assert answer["object"] == "text_completion"


def test_samples_of_several_prompts_are_numbered_through(http: httpx2.Client, smollm2: LLM) -> None:
    fields = {"prompt": [PROMPT, OTHER], "n": 2, "seed": 7, "temperature": 1.0, "max_tokens": 12}
    whole = post(http, **fields).json()
    outputs = generated(smollm2, [PROMPT, OTHER], n=2, seed=7, temperature=1.0, max_tokens=12)
    expected = [sample.text for output in outputs for sample in output.outputs]
    assert [choice["text"] for choice in whole["choices"]] == expected
    texts = [""] * 4
    finishes: list[str | None] = [None] * 4
    *chunks, last = chunks_of(post(http, **fields, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        finishes[choice["index"]] = choice["finish_reason"] or finishes[choice["index"]]
        assert chunk["usage"] is None
    assert texts == expected
    assert finishes == [choice["finish_reason"] for choice in whole["choices"]]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert last["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_best_of_returns_the_likeliest(http: httpx2.Client, smollm2: LLM) -> None:
    fields = {"n": 2, "best_of": 4, "seed": 3, "temperature": 1.0}
    (expected,) = generated(smollm2, PROMPT, **fields)
    texts = [choice["text"] for choice in post(http, **fields).json()["choices"]]
    assert texts == [sample.text for sample in expected.outputs]


def test_the_client_library(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="smollm2", prompt=PROMPT, temperature=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16
    stream = client.completions.create(model="smollm2", prompt=PROMPT, temperature=0, stream=True, logprobs=1)
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


# Logprobs


def direct(llm: LLM, ids: list[int]) -> list[dict[int, float] | None]:
    """What the engine says of a prompt, asked directly and without a cache."""
    llm.reset_prefix_cache()
    (output,) = generated(llm, {"prompt_token_ids": ids}, max_tokens=1, prompt_logprobs=1)
    assert output.prompt_logprobs is not None
    return [
        None if entry is None else {token: each.logprob for token, each in entry.items()}
        for entry in output.prompt_logprobs
    ]


def test_echoed_logprobs_are_those_of_the_engine_with_the_cache_cold_and_hot(http: httpx2.Client, smollm2: LLM) -> None:
    """As lm-eval asks for them, in batches of token ids, and judges by exact equality."""
    text = "Question: is water wet? Answer: it is.\n" * 3
    prompts = [smollm2.tokenizer.encode(text + end) for end in ("Yes", "No, it is not", "東京 🎉")]
    expected = [direct(smollm2, ids) for ids in prompts]
    smollm2.reset_prefix_cache()
    cached = []
    for _ in range(2):
        answer = post(http, prompt=prompts, max_tokens=1, logprobs=1, echo=True, seed=1234).json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        for ids, choice, values in zip(prompts, answer["choices"], expected, strict=True):
            lists = choice["logprobs"]
            assert len(lists["tokens"]) == len(ids) + 1
            assert lists["token_logprobs"][0] is None
            assert lists["top_logprobs"][0] is None
            for idx in range(1, len(ids)):
                known = values[idx]
                assert known is not None
                assert lists["token_logprobs"][idx] == known[ids[idx]]
                top = lists["top_logprobs"][idx]
                assert sorted(top.values()) == sorted(known.values())
                is_greedy = ids[idx] == max(known, key=lambda token, known=known: known[token])  # type: ignore[misc]
                assert (lists["token_logprobs"][idx] == max(top.values())) == is_greedy
    assert cached[1] > cached[0]


@pytest.mark.parametrize("prompt", [PROMPT, OTHER, "<|im_start|>user\nhi<|im_end|>", "🎉"])
def test_offsets_say_where_tokens_begin(http: httpx2.Client, smollm2: LLM, prompt: str) -> None:
    (choice,) = post(http, prompt=prompt, echo=True, logprobs=0, max_tokens=6).json()["choices"]
    lists, text = choice["logprobs"], choice["text"]
    assert text.startswith(prompt)
    assert lists["text_offset"] == sorted(lists["text_offset"])
    for token, start in zip(lists["tokens"], lists["text_offset"], strict=True):
        if not token.startswith("bytes:") and "�" not in text:
            assert text[start : start + len(token)] == token or smollm2.tokenizer.token_to_id(token) is not None
    data = b"".join(
        bytes.fromhex(token[6:].replace("\\x", "")) if token.startswith("bytes:") else token.encode()
        for token in lists["tokens"]
    )
    assert data.decode(errors="replace").startswith(prompt)


def test_a_prompt_alone_can_be_scored_or_only_cached(http: httpx2.Client) -> None:
    for fields in ({"echo": True, "logprobs": 2, "n": 2}, {"echo": True}, {}):
        answer = post(http, max_tokens=0, **fields).json()
        assert answer["usage"]["completion_tokens"] == 0
        assert len(answer["choices"]) == fields.get("n", 1)
        for idx, choice in enumerate(answer["choices"]):
            assert (choice["index"], choice["finish_reason"]) == (idx, "length")
            assert choice["text"] == (PROMPT if fields.get("echo") else "")
            if "logprobs" in fields:
                assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    (chunk,) = chunks_of(post(http, max_tokens=0, stream=True))
    assert chunk["choices"][0]["finish_reason"] == "length"


def test_the_token_that_scores_a_prompt_is_no_token_of_its_answer(http: httpx2.Client) -> None:
    fields = {"max_tokens": 0, "echo": True, "return_token_ids": True}
    (whole,) = post(http, **fields).json()["choices"]
    assert (whole["text"], whole["token_ids"]) == (PROMPT, [])
    assert len(whole["prompt_token_ids"]) > 1
    (chunk,) = chunks_of(post(http, **fields, stream=True))
    assert chunk["choices"] == [whole]


def test_the_lists_of_a_stream_are_those_of_a_whole_answer(http: httpx2.Client) -> None:
    fields = {"prompt": "Emojis: 😀🎉🌍 and more 😀", "logprobs": 3, "max_tokens": 24, "temperature": 1.0, "seed": 5}
    whole = post(http, **fields).json()["choices"][0]
    merged: dict[str, list[Any]] = {}
    for chunk in chunks_of(post(http, **fields, stream=True)):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            merged.setdefault(name, []).extend(values)
    assert merged == whole["logprobs"]
    assert all(3 <= len(top) <= 4 for top in merged["top_logprobs"])
    for token, value, top in zip(merged["tokens"], merged["token_logprobs"], merged["top_logprobs"], strict=True):
        assert math.isfinite(value)
        assert value in top.values(), token


@pytest.mark.parametrize("max_tokens", [0, 1, 6])
def test_a_streamed_echo_has_its_logprobs(http: httpx2.Client, max_tokens: int) -> None:
    fields = {"prompt": [PROMPT, OTHER], "n": 2, "echo": True, "logprobs": 2, "max_tokens": max_tokens, "seed": 3}
    whole = post(http, **fields).json()
    *chunks, last = chunks_of(post(http, **fields, stream=True, stream_options={"include_usage": True}))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert sorted(choices, key=lambda choice: choice["index"]) == whole["choices"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_tokens_may_be_shown_as_ids(http: httpx2.Client) -> None:
    fields = {"logprobs": 1, "return_tokens_as_token_ids": True, "return_token_ids": True}
    (choice,) = post(http, **fields).json()["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in choice["token_ids"]]


@given(
    text=st.text(alphabet=st.characters(codec="utf-8"), max_size=20), places=st.lists(st.integers(0, 60), max_size=8)
)
def test_positions_count_whole_characters(text: str, places: list[int]) -> None:
    data = text.encode()
    bounds = sorted({0, len(data), *(min(place, len(data)) for place in places)})
    positions = TextPositions()
    for start, end in itertools.pairwise(bounds):
        at = positions.place(data[start:end])
        assert at == len(data[:start].decode(errors="ignore"))


# Streams and stops


def test_an_echo_comes_first_in_a_stream(http: httpx2.Client) -> None:
    whole = post(http, echo=True, n=2).json()["choices"]
    texts = ["", ""]
    first, *_ = chunks = chunks_of(post(http, echo=True, n=2, stream=True))
    assert first["choices"][0]["text"] == PROMPT
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [choice["text"] for choice in whole]


@pytest.mark.parametrize("length", range(1, 8))
def test_no_part_of_a_stop_string_is_shown(http: httpx2.Client, length: int) -> None:
    text = post(http, max_tokens=12).json()["choices"][0]["text"]
    stop = text[5 : 5 + length]
    shown = "".join(
        chunk["choices"][0]["text"] for chunk in chunks_of(post(http, stop=stop, stream=True, max_tokens=12))
    )
    assert shown == text[: text.index(stop)]
    (kept,) = post(http, stop=[stop, "zzz"], max_tokens=12, include_stop_str_in_output=True).json()["choices"]
    assert kept["text"] == text[: text.index(stop) + length]
    assert (kept["finish_reason"], kept["stop_reason"]) == ("stop", stop)


def test_json_ends_within_its_budget(http: httpx2.Client) -> None:
    schema = {"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]}
    (choice,) = post(http, guided_json=schema, max_tokens=14).json()["choices"]
    assert json.loads(choice["text"])["why"] is not None
    assert (choice["finish_reason"], choice["ramet"]["complete"]) == ("stop", True)


# What is refused


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [[1, 10**9]]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 3000}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"n": 1000}, "n"),
        ({"best_of": 1000}, "best_of"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 2, "stream": True, "temperature": 1}, "best_of"),
        ({"logprobs": 1000}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stop_token_ids": [10**9]}, "stop_token_ids"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"seed": "x"}, "seed"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_wrong_values_are_refused_by_name(http: httpx2.Client, fields: dict[str, Any], param: str) -> None:
    answer = post(http, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert post(http).status_code == 200


def test_a_body_that_is_none(http: httpx2.Client) -> None:
    headers = {"content-type": "application/json"}
    for content in (b"", b"{", b"[]", b'"x"', b'{"prompt":' + b"[" * 50_000, b'{"prompt": NaN}', b"\xff\xfe"):
        answer = http.post("/v1/completions", content=content, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]


def test_too_many_samples_at_once_are_told_to_come_again(serve: Serve) -> None:
    with httpx2.Client(base_url=serve(max_waiting_sequences=0, max_n=4).url, timeout=60) as small:
        assert post(small, n=5).status_code == 400
        answer = post(small, prompt=["a"] * 500)
        assert answer.status_code == 400
        assert "500 samples" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/audio/speech", "/v1/images/generations", "/rerank"])
def test_what_a_model_of_text_has_not_is_refused(http: httpx2.Client, path: str) -> None:
    answer = http.post(path, json={"model": "smollm2", "input": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_supported")
    assert "text only" in answer.json()["error"]["message"]


def test_embeddings_through_the_client_library(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="text only"):
        client.embeddings.create(model="smollm2", input="x")
