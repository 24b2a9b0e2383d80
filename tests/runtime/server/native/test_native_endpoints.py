"""Tokens, information and control: what SGLang's, vLLM's and lm-eval's clients ask beside `/generate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ramet import LLM, Trace
from ramet.runtime.chat_template import TextSegment
from ramet.runtime.errors import PrefixesKeptError

from ..conftest import Serve

pytestmark = pytest.mark.model


def post(http: httpx2.Client, path: str, expected: int = 200, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == expected, answer.text
    return answer.json()


def test_a_prompt_is_tokenised_as_completions_are(http: httpx2.Client, smollm2: LLM) -> None:
    text = "<|im_start|>user\nHi 🙂"
    found = post(http, "/tokenize", prompt=text, add_special_tokens=False, model="whatever")
    expected = smollm2.tokenizer.encode(text, parse_special=True)
    assert found == {"tokens": expected, "count": len(expected), "max_model_len": smollm2.max_context_len}
    both = post(http, "/tokenize", prompt=[text, ""], return_token_strs=True)
    assert both["tokens"] == [expected, []]
    assert both["count"] == [len(expected), 0]
    assert both["token_strs"][0][0] == "<|im_start|>"


def test_messages_and_segments_are_tokenised(http: httpx2.Client, smollm2: LLM) -> None:
    messages = [{"role": "user", "content": "<|im_end|> Hi"}]
    tokenizer = smollm2.tokenizer
    found = post(http, "/tokenize", messages=messages)
    assert found["tokens"] == tokenizer.encode_segments(tokenizer.chat_template.segments(messages))
    found = post(http, "/tokenize", messages=messages, add_generation_prompt=False)
    assert found["tokens"] == tokenizer.encode_segments(tokenizer.chat_template.segments(messages, False))
    segments = [{"text": "<|im_end|>", "is_template": True}, {"text": "<|im_end|>"}]
    found = post(http, "/tokenize", segments=segments, at_start=False)
    pieces = [TextSegment("<|im_end|>", True), TextSegment("<|im_end|>", False)]
    assert found["tokens"] == tokenizer.encode_segments(pieces, is_text_start=False)


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ASKED = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Look!"}]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [TOOL]},
        {
            "tools": [TOOL],
            "messages": [
                *ASKED,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "Sunny."},
            ],
        },
        {"chat_template_kwargs": {"enable_thinking": False}},
        {
            "messages": [*ASKED, {"role": "assistant", "content": "I see"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
    ],
    ids=["plain", "tools", "calls", "options", "continued"],
)
def test_messages_are_tokenised_as_a_chat_does(http: httpx2.Client, fields: dict[str, Any]) -> None:
    """Also with tools that the template of the bundled model does not know."""
    asked = {"messages": ASKED, **fields}
    chat = post(http, "/v1/chat/completions", **asked, max_tokens=1, return_token_ids=True)
    assert post(http, "/tokenize", **asked)["tokens"] == chat["prompt_token_ids"]


def test_templates_are_taken_from_requests_only_where_they_are_allowed(http: httpx2.Client, serve: Serve) -> None:
    asked = {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ messages[0].content }}"}
    assert "--allow-request-template" in post(http, "/tokenize", 400, **asked)["error"]["message"]
    with httpx2.Client(base_url=serve(allow_request_template=True).url) as open_http:
        assert post(open_http, "/tokenize", **asked)["count"] == 1


def test_tokens_become_text_again(http: httpx2.Client, smollm2: LLM) -> None:
    text = "Hi 🙂<|im_end|>"
    ids = post(http, "/tokenize", prompt=text)["tokens"]
    found = post(http, "/detokenize", tokens=ids)
    assert found == {"text": "Hi 🙂", "prompt": text, "bytes": text.encode().hex()}
    assert post(http, "/detokenize", tokens=ids, skip_special_tokens=False)["text"] == text
    one_each = post(http, "/detokenize", tokens=[[token_id] for token_id in ids])
    assert "".join(one_each["bytes"]) == text.encode().hex()
    assert one_each["bytes"] == [smollm2.tokenizer.token_bytes(token_id).hex() for token_id in ids]
    assert post(http, "/detokenize", tokens=[]) == {"text": "", "prompt": "", "bytes": ""}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt and messages"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "\ud800"}, "surrogate"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "content"),
        ("/tokenize", {"messages": [{"content": "x"}]}, "role"),
        ("/tokenize", {"messages": [{"role": 3, "content": "x"}]}, "role"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, "tools[0].function.name"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"segments": [{"text": 3}]}, "segments[0].text"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "no"}, "add_special_tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "-1"),
        ("/detokenize", {"tokens": [10**9]}, "1000000000"),
        ("/detokenize", {"tokens": [[1], [10**30]]}, "1000000000"),
        ("/detokenize", {"tokens": [1, [1]]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
    ],
)
def test_what_is_wrong_is_named(http: httpx2.Client, path: str, body: dict[str, Any], named: str) -> None:
    answer = http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert named in answer.json()["error"]["message"]


def test_the_tokenizer_tells_what_lm_eval_needs(http: httpx2.Client, smollm2: LLM) -> None:
    found = http.get("/tokenizer_info").json()
    assert found["eos_token"] == "<|im_end|>"
    assert found["pad_token"] is not None
    assert found["bos_token"] == "<|im_start|>"
    assert found["chat_template"] == smollm2.tokenizer.chat_template.source


def test_the_model_and_the_server_say_who_they_are(serve: Serve) -> None:
    server = serve(served_model_names=("small", "other"))
    with httpx2.Client(base_url=server.url) as http:
        info = http.get("/get_model_info").json()
        assert info == http.get("/model_info").json()
        assert (info["model_path"], info["served_model_name"]) == ("smollm2", "small")
        assert isinstance(info["ramet"]["version"], str)
        options = http.get("/server_info").json()
        assert (options["tp_size"], options["dp_size"], options["served_model_name"]) == (1, 1, "small")
        assert options.keys() == http.get("/get_server_info").json().keys()
        assert "num_steps" in options["metrics"]
        assert http.get("/health_generate").json() == {"status": "ok"}
        assert http.get("/v1/loads").json()["loads"][0]["num_total_reqs"] == 0
        assert http.get("/get_load").json()[0]["num_waiting_reqs"] == 0


def test_what_concerns_everybody_is_for_admins(serve: Serve) -> None:
    server = serve(api_keys=("alice=alice-key", "bob=bobs-key"), admin_api_keys=("boss-key",))
    with httpx2.Client(base_url=server.url, headers={"x-api-key": "alice-key"}) as http:
        for path in ("/flush_cache", "/start_profile", "/stop_profile"):
            assert http.post(path).status_code == 403
            assert http.get(path).status_code == 403
        assert http.get("/v1/loads").status_code == 403
        info = http.get("/server_info").json()
        assert "metrics" not in info
        assert not {"api_keys", "admin_api_keys"} & info.keys()
        assert "metrics" in http.get("/server_info", headers={"x-api-key": "boss-key"}).json()


def test_the_cache_is_flushed(http: httpx2.Client) -> None:
    prompt = {"text": "Once upon a time there was a flush of the cache. " * 4, "sampling_params": {"max_new_tokens": 1}}
    post(http, "/generate", **prompt)
    assert post(http, "/generate", **prompt)["meta_info"]["cached_tokens"] > 0
    assert http.post("/flush_cache").text.startswith("Cache flushed")
    assert post(http, "/generate", **prompt)["meta_info"]["cached_tokens"] == 0


def test_a_flush_that_leaves_prefixes_on_disk_is_an_error(serve: Serve, tmp_path: Path) -> None:
    prompt = {"text": "Once upon a time there was a flush of the cache. " * 4, "sampling_params": {"max_new_tokens": 1}}
    options: dict[str, Any] = {"prefix_cache_dir": tmp_path, "kv_cache_memory": "32M"}
    with LLM("smollm2", **options) as writing, LLM("smollm2", **options) as reading:
        writer, reader = serve(writing), serve(reading)
        with httpx2.Client(base_url=reader.url, timeout=60.0) as http:
            flushed = http.post("/flush_cache")
        assert flushed.status_code == 503
        assert flushed.json()["error"]["code"] == "prefixes_kept"
        assert "flush the cache of the one that stores them" in flushed.json()["error"]["message"]
        with httpx2.Client(base_url=writer.url, timeout=60.0) as http:
            post(http, "/generate", **prompt)
            assert http.post("/flush_cache").text.startswith("Cache flushed")
        with pytest.raises(PrefixesKeptError):
            reading.reset_prefix_cache()
    assert not any(file.read_bytes()[4096:].strip(b"\0") for file in tmp_path.rglob("*.index"))


def test_a_profile_is_a_trace(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    with httpx2.Client(base_url=server.url, timeout=60.0) as http:
        assert http.post("/stop_profile").status_code == 409
        assert http.post("/start_profile?num_steps=0").status_code == 400
        assert http.post("/start_profile").status_code == 200
        assert http.post("/start_profile").status_code == 409
        post(http, "/generate", text="Hello", sampling_params={"max_new_tokens": 3, "ignore_eos": True})
        assert http.post("/stop_profile?format=gif").status_code == 400
        (tmp_path / "profile.jsonl").write_bytes(http.post("/stop_profile").content)
        assert len(Trace.load_jsonl(tmp_path / "profile.jsonl")) >= 3
        http.post("/start_profile?num_steps=2")
        post(http, "/generate", text="Hello", sampling_params={"max_new_tokens": 3})
        page = http.post("/stop_profile?format=html")
        assert page.headers["content-type"].startswith("text/html")
        assert "<svg" in page.text


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/tokenize", {"prompt": [""] * 5}, "prompt has 5 prompts"),
        ("/tokenize", {"prompt": ["", "", "123456789"]}, "prompt has 11 characters"),
        ("/tokenize", {"segments": [{"text": ""}] * 11}, "segments has 11 characters"),
        ("/detokenize", {"tokens": [[]] * 5}, "tokens has 5 prompts"),
        ("/detokenize", {"tokens": [[], [], [1] * 9]}, "tokens has 11 ids"),
        ("/detokenize", {"tokens": [1] * 11}, "tokens has 11 ids"),
    ],
)
def test_what_is_too_much_is_refused_before_anything_is_done(
    serve: Serve, path: str, body: dict[str, Any], named: str
) -> None:
    with httpx2.Client(base_url=serve(max_prompts=4, max_prompt_chars=10).url) as http:
        error = post(http, path, 400, **body)["error"]
        assert named in error["message"]
        assert error["param"] == next(iter(body))
        as_much_as_goes = {"prompt": ["", "123456789"], "tokens": [[], [1] * 9], "segments": [{"text": ""}] * 10}
        post(http, path, 200, **{name: as_much_as_goes[name] for name in body})


def test_a_refused_field_of_generate_is_called_as_the_client_called_it(http: httpx2.Client) -> None:
    error = post(http, "/generate", 400, text="a", sampling_params={"max_tokens": 5})["error"]
    assert "has no 'max_tokens'; here it is called 'max_new_tokens'" in error["message"]
    error = post(http, "/generate", 400, text="a", lora_path="x")["error"]
    assert error["param"] == "lora_path"
